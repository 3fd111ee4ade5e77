"""Field selectors with escapes, quantities, paths and Accept headers; other selectors are in the contract."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspawner.devcluster import quantity
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.objects.resources import NAMESPACES, PODS, Target
from dlspawner.devcluster.api.objects.selectors import matches, parse_fields
from dlspawner.devcluster.api.requests import parse_path, wants_table


def test_field_selector_is_unescaped() -> None:
    assert matches(parse_fields(r"metadata.name=a\,b", PODS), {"metadata.name": "a,b"})


QUANTITIES: dict[str, Fraction] = {
    "1": Fraction(1),
    "1.5": Fraction(3, 2),
    ".5": Fraction(1, 2),
    "128Gi": Fraction(128 * 2**30),
    "1e3": Fraction(1000),
    "1E": Fraction(10**18),
    "5n": Fraction(5, 10**9),
    "-1": Fraction(-1),
}


@pytest.mark.parametrize(("text", "number"), QUANTITIES.items())
def test_quantities(text: str, number: Fraction) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1gi", "1.2.3", "0x10", "1ki", True, None, [1]])
def test_malformed_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        quantity.parse(text)


@given(st.integers(0, 10**15), st.sampled_from(["m", "", "k", "Ki", "Mi", "G"]))
def test_every_number_with_a_suffix_is_a_quantity(number: int, suffix: str) -> None:
    assert quantity.parse(f"{number}{suffix}") >= 0


PATHS: dict[str, Target] = {
    "/api/v1/namespaces/a/finalize": Target(NAMESPACES, "", "a", "finalize"),
}


@pytest.mark.parametrize(("path", "target"), PATHS.items())
def test_paths(path: str, target: Target) -> None:
    assert parse_path(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods/p",
        "/api/v1/namespaces/a/nodes",
        "/api/v1/namespaces/a/pods/p/nonsense",
        "/api/v1/namespaces//pods",
    ],
)
def test_paths_that_lead_nowhere(path: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_path(path)
    assert error.value.code == 404


ACCEPTS: dict[str, bool] = {
    "": False,
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json": False,
    "application/vnd.kubernetes.protobuf,application/json": False,
}


@pytest.mark.parametrize(("accept", "expected"), ACCEPTS.items())
def test_accept_headers(accept: str, expected: bool) -> None:
    assert wants_table(accept) == expected


def test_unsupported_accept_header_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        wants_table("application/xml")
    assert error.value.code == 406
