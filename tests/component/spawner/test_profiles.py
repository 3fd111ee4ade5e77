"""KubeSpawner's profiles: what people may send, and what a form shows of it; the sentences in a real Hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubespawner import KubeSpawner
from traitlets.config import Config

from dlspawner.spawner import StartRefused
from tests.e2e.people import wait_for
from tests.harness.spawner_builders import make_spawner
from tests.harness.spawner_hub import Hub, Person, alert, form_back, new_name, running


def image(name: str) -> dict[str, Any]:
    return {"display_name": name, "kubespawner_override": {"image": f"example.org/{name}:1"}}


async def later(spawner: Any) -> str:
    return f"{spawner.mem_guarantee or 0}-{spawner.user.name}"


PROFILES: list[dict[str, Any]] = [
    {
        "display_name": "CPU",
        "slug": "cpu",
        "description": "The <b>usual</b> one",
        "kubespawner_override": {"mem_guarantee": "1G", "node_selector": {}},
        "profile_options": {
            "image": {
                "display_name": "Image",
                "choices": {"r": image("r"), "py": {**image("py"), "default": True}},
                "unlisted_choice": {
                    "enabled": True,
                    "display_name": "Another",
                    "validation_regex": 'example.org/[a-z"]+',
                    "validation_message": 'Must be "ours".',
                    "kubespawner_override": {"image": "{value}", "environment": {"IMAGE": "{value}"}},
                },
            },
            "size": {"display_name": "Size", "choices": {"small": {"display_name": "Small"}}},
        },
    },
    {
        "display_name": "GPU",
        "slug": "gpu",
        "kubespawner_override": {"mem_guarantee": "2G", "image_pull_policy": later},
        "profile_options": {"count": {"display_name": "Count", "choices": {"1": {"display_name": "One"}}}},
    },
]
GOOD = {
    "nothing is chosen": {},
    "a profile": {"profile": "gpu"},
    "a choice": {"profile": "cpu", "image": "r"},
    "a choice of the default profile": {"image": "r"},
    "an unlisted choice": {"profile": "cpu", "image--unlisted-choice": "example.org/mine"},
    "what hooks and other forms take": {"profile": "cpu", "colour": "blue", "depth": [1, {"a": None}]},
}
BAD = {
    "an unknown profile": ({"profile": "tpu"}, "There is no profile “tpu”. There are: cpu, gpu."),
    "a profile that is no text": ({"profile": ["cpu"]}, "There is no profile “['cpu']”. There are: cpu, gpu."),
    "an unknown choice": (
        {"profile": "cpu", "image": "julia"},
        "The option image has no choice “julia”. It has: r, py.",
    ),
    "an unknown choice without a profile": ({"image": "x"}, "The option image has no choice “x”. It has: r, py."),
    "a choice that is no text": ({"image": {"a": 1}}, "The option image has no choice “{'a': 1}”. It has: r, py."),
    "an option of another profile": (
        {"profile": "gpu", "image": "r"},
        "The profile gpu has no option “image”. It has: count.",
    ),
    "an unlisted choice of no option": (
        {"profile": "gpu", "disk--unlisted-choice": "1"},
        "The profile gpu has no option “disk”. It has: count.",
    ),
    "an unlisted choice that is not allowed": (
        {"profile": "cpu", "size--unlisted-choice": "huge"},
        "The option size takes only the choices that it lists.",
    ),
    "an unlisted choice that only begins well": (
        {"profile": "cpu", "image--unlisted-choice": "example.org/mine@evil.example.org/x"},
        'The option image cannot be “example.org/mine@evil.example.org/x”. Must be "ours".',
    ),
    "an unlisted choice without a profile is checked as well": (
        {"image--unlisted-choice": "evil.example.org/x"},
        'The option image cannot be “evil.example.org/x”. Must be "ours".',
    ),
    "an unlisted choice that is no text": (
        {"profile": "cpu", "image--unlisted-choice": ["example.org/x"]},
        "The option image cannot be “['example.org/x']”. Must be \"ours\".",
    ),
}


def spawner_with(monkeypatch: pytest.MonkeyPatch, **traits: Any) -> Any:
    config = Config({"KubeSpawner": {"profile_list": PROFILES, **traits}})
    return make_spawner(monkeypatch, settings=None, config={"config": config})


@pytest.mark.parametrize("given", GOOD.values(), ids=GOOD)
async def test_what_is_offered_can_be_chosen(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spawner = spawner_with(monkeypatch)
    spawner.user_options = given
    await spawner.load_user_options()
    assert spawner.mem_guarantee in {2**30, 2**31}


@pytest.mark.parametrize(("given", "sentence"), BAD.values(), ids=BAD)
async def test_what_is_not_offered_is_refused_in_a_sentence(
    given: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawner = spawner_with(monkeypatch)
    spawner.user_options = given
    with pytest.raises(StartRefused) as refused:
        await spawner.load_user_options()
    assert refused.value.message == sentence
    assert spawner.mem_guarantee is None


async def test_a_coroutine_is_awaited_after_what_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def named(spawner: Any) -> str:
        return f"example.org/of-{spawner.user.name}-with-{spawner.mem_guarantee}"

    profiles = [{"display_name": "x", "kubespawner_override": {"mem_guarantee": "1G", "image": named}}]
    spawner = spawner_with(monkeypatch, profile_list=profiles)
    await spawner.load_user_options()
    assert spawner.image == f"example.org/of-alice-with-{2**30}"


async def test_an_unlisted_choice_stays_with_the_one_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = [dict(profile) for profile in PROFILES]

    def offered(_: Any) -> list[dict[str, Any]]:
        return shared  # the very same for everybody

    for name in ("ann", "ben"):
        spawner = spawner_with(monkeypatch, profile_list=offered)
        spawner.user_options = {"profile": "cpu", "image--unlisted-choice": f"example.org/{name}"}
        await spawner.load_user_options()
        assert (spawner.image, spawner.environment["IMAGE"]) == (f"example.org/{name}", f"example.org/{name}")
    assert shared[0]["profile_options"]["image"]["unlisted_choice"]["kubespawner_override"]["image"] == "{value}"


class TestForm:
    def test_it_is_kubespawners_but_for_quotation_marks_in_patterns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours = spawner_with(monkeypatch).options_form
        config = Config({"KubeSpawner": {"profile_list": PROFILES}})
        theirs = make_spawner(monkeypatch, settings=None, cls=KubeSpawner, config={"config": config}).options_form

        assert 'pattern="example.org/[a-z&#34;]+"'.replace("&#34;", "&quot;") in ours
        plain = ours.replace("[a-z&quot;]", '[a-z"]').replace("Must be &quot;ours&quot;.", 'Must be "ours".')
        assert plain == theirs
        assert "The <b>usual</b> one" in ours

    def test_what_was_chosen_last_is_selected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spawner = spawner_with(monkeypatch)
        spawner.user_options = {"profile": "gpu", "count": "1"}
        assert 'const userOptions = {"profile": "gpu", "count": "1"}' in spawner.options_form.replace("\n", " ")

    @pytest.mark.parametrize(
        "given",
        [
            {"profile": "gone"},
            {"profile": "cpu", "image--unlisted-choice": "evil"},
            {"x": "<script>"},
            {"<script>": "1"},
        ],
        ids=repr,
    )
    def test_what_cannot_be_chosen_any_more_or_is_html_is_not_shown(
        self, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        form = "{{ user_options }}"
        spawner = spawner_with(monkeypatch, profile_form_template=form)
        spawner.user_options = given
        assert spawner.options_form in {"{}", "{'profile': 'cpu'}"}
        assert spawner.user_options == given


HUB = """
import asyncio
c.DLSpawner.templates_dir = ""
c.KubeSpawner.cmd = ["sleep", "60"]
async def slow(spawner):
    if spawner.name.startswith("late"):
        await asyncio.sleep(1.5)
c.Spawner.pre_spawn_hook = slow
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 30}  # longer than a refusal takes on a busy machine
c.Spawner.consecutive_failure_limit = LIMIT
c.KubeSpawner.profile_list = [
    {"display_name": "CPU", "profile_options": {
        "size": {"display_name": "Size", "choices": {"small": {"display_name": "S"}, "big": {"display_name": "B"}}},
    }},
]
"""
SENTENCE = "The option size has no choice “huge”. It has: small, big."


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    # One that is counted would stop this Hub.
    with running(Hub(tmp_path_factory.mktemp("profiles"), extra=HUB.replace("LIMIT", "1"))) as started:
        yield started


@pytest.fixture(scope="module")
def alice(hub: Hub) -> Person:
    return Person(hub, "alice")


class TestThreeWaysIn:
    """Nothing is made, nothing is counted, no traceback is logged."""

    def test_the_form_comes_back(self, hub: Hub, alice: Person) -> None:
        server = new_name("form")
        answer = form_back(alice, server, profile="cpu", **{"profile-option-cpu--size": "huge"})
        assert answer.status_code == 400
        assert SENTENCE in alert(answer.content.decode())
        assert 'id="profile-item-cpu"' in answer.text
        self.check_nothing_happened(hub, server)

    def test_a_late_one_is_on_the_failed_page(self, hub: Hub, alice: Person) -> None:
        server = new_name("late")
        answer = alice.post(f"/hub/spawn/alice/{server}", profile="cpu", **{"profile-option-cpu--size": "huge"})
        assert answer.status_code == 302

        def failed() -> str | None:
            page = alice.get(answer.headers["Location"])
            return page.content.decode() if page.status_code == 400 else None

        assert SENTENCE in wait_for(failed, "the page of the failed start")
        self.check_nothing_happened(hub, server)

    def test_rest_answers_with_it(self, hub: Hub, alice: Person) -> None:
        server = new_name("rest")
        answer = alice.start(server, profile="cpu", size="huge")

        assert (answer.status_code, answer.json()["message"]) == (400, SENTENCE)
        self.check_nothing_happened(hub, server)

    def check_nothing_happened(self, hub: Hub, server: str) -> None:
        assert server not in hub.kubectl("get", "pod,secret,service,pvc", "-o", "name")
        assert "Traceback" not in hub.log
        assert "unhandled user_options" not in hub.log
        assert "Unhandled user option" not in hub.log
