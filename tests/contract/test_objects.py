"""Create, read, update, list: names, defaults, metadata, conflicts and the form of every error."""

import base64
import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.client import Client, pod


def test_created_object_gets_the_servers_metadata(cluster: Client, config_maps: str, namespace: str) -> None:
    created = cluster.create(
        config_maps, {"metadata": {"name": "a", "uid": "mine", "labels": {"where": namespace}}, "data": {"k": "v"}}
    )
    metadata = created["metadata"]
    assert (created["kind"], created["apiVersion"]) == ("ConfigMap", "v1")
    assert metadata["namespace"] == namespace
    assert metadata["uid"] != "mine"
    assert int(metadata["resourceVersion"]) > 0
    dt.datetime.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
    assert cluster.get(f"{config_maps}/a") == created
    everywhere = cluster.get("/api/v1/configmaps", labelSelector=f"where={namespace}")["items"]
    assert [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in everywhere] == [(namespace, "a")]


def test_yaml_bodies_are_read(cluster: Client, config_maps: str) -> None:
    body = b"metadata: {name: written-in-yaml}\ndata:\n  day: '2026-01-01'\n"
    answer = cluster.request("POST", config_maps, body, headers={"Content-Type": "application/yaml"})
    assert answer.code == 201
    assert answer.json["data"] == {"day": "2026-01-01"}


def test_generate_name_makes_a_new_name_each_time(cluster: Client, pods: str) -> None:
    manifest = pod()
    manifest["metadata"] = {"generateName": "job-"}
    names = {cluster.create(pods, manifest)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


def test_second_object_of_a_name_already_exists(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod("twin"))
    status = cluster.expect(409, "POST", pods, pod("twin"))
    assert status == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "twin" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "twin", "kind": "pods"},
        "code": 409,
    }


def test_missing_object_is_not_found(cluster: Client, namespace: str) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/none"
    status = cluster.expect(404, "GET", lease)
    assert status["message"] == 'leases.coordination.k8s.io "none" not found'
    assert status["reason"] == "NotFound"
    assert status["details"] == {"name": "none", "group": "coordination.k8s.io", "kind": "leases"}


def test_namespace_must_exist(cluster: Client) -> None:
    status = cluster.expect(404, "POST", "/api/v1/namespaces/no-such-place/pods", pod())
    assert (status["reason"], status["message"]) == ("NotFound", 'namespaces "no-such-place" not found')


def test_wrong_paths_and_methods_are_refused(cluster: Client, pods: str, config_maps: str) -> None:
    for path in ("/api/v1/nonsense", "/api/v2/pods", "/apis/example.org/v1/things", "/x"):
        assert cluster.request("GET", path).code == 404
    assert cluster.expect(405, "PUT", pods, pod())["reason"] == "MethodNotAllowed"
    cluster.create(config_maps, {"metadata": {"name": "a"}, "data": {"k": "v"}, "immutable": True})
    assert cluster.patch(f"{config_maps}/a", {"data": {"k": "w"}}, "merge").code == 422
    assert cluster.expect(400, "PUT", f"{config_maps}/a", {"metadata": {"name": "b"}})["reason"] == "BadRequest"


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"{", "application/json", 400),
        (b'{"metadata": {"name": "p"}, "spec": {"x": NaN}}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"<xml/>", "application/xml", 415),
        (b'{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "p"}}', "application/json", 400),
        (b'{"metadata": {"name": "p", "labels": {"a": 1}}}', "application/json", 400),
        (b'{"metadata": {"name": "p"}, "spec": {"containers": "none"}}', "application/json", 400),
        (b'{"metadata": {"name": "p", "namespace": "elsewhere"}, "spec": {}}', "application/json", 400),
    ],
)
def test_malformed_body_is_refused(cluster: Client, pods: str, body: bytes, content_type: str, code: int) -> None:
    answer = cluster.request("POST", pods, body, headers={"Content-Type": content_type})
    assert (answer.code, answer.json["kind"]) == (code, "Status")


def test_body_beyond_the_limit_is_refused(cluster: Client, config_maps: str) -> None:
    status = cluster.expect(413, "POST", config_maps, {"metadata": {"name": "big"}, "data": {"k": "x" * 4_000_000}})
    assert status["reason"] == "RequestEntityTooLarge"


@pytest.mark.parametrize(
    ("method", "path", "message", "details"),
    [
        ("GET", "/api/v1/namespaces/default/pods",
         'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace'
         ' "default"', {"kind": "pods"}),
        ("GET", "/api/v1/nodes/x",
         'nodes "x" is forbidden: User "system:anonymous" cannot get resource "nodes" in API group "" at the cluster'
         " scope", {"name": "x", "kind": "nodes"}),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x",
         'leases.coordination.k8s.io "x" is forbidden: User "system:anonymous" cannot delete resource "leases" in API'
         ' group "coordination.k8s.io" in the namespace "default"',
         {"name": "x", "group": "coordination.k8s.io", "kind": "leases"}),
        ("GET", "/api", 'forbidden: User "system:anonymous" cannot get path "/api"', {}),
    ],
)  # fmt: skip
def test_anonymous_requests_are_forbidden(
    cluster: Client, method: str, path: str, message: str, details: dict[str, str]
) -> None:
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Basic eA=="}):
        answer = cluster.stranger().request(method, path, headers=headers)
        assert (answer.code, answer.json["reason"], answer.json["message"]) == (403, "Forbidden", message)
        assert answer.json["details"] == details


def test_update_needs_the_version_it_was_made_from(cluster: Client, config_maps: str) -> None:
    first = cluster.create(config_maps, {"metadata": {"name": "a"}, "data": {"n": "1"}})
    second = cluster.put(f"{config_maps}/a", first | {"data": {"n": "2"}})
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    status = cluster.expect(409, "PUT", f"{config_maps}/a", first | {"data": {"n": "3"}})
    assert status["reason"] == "Conflict"
    assert status["message"].startswith('Operation cannot be fulfilled on configmaps "a": the object has been modified')
    assert cluster.get(f"{config_maps}/a")["data"] == {"n": "2"}


def test_wrong_token_is_unauthorized(cluster: Client) -> None:
    answer = cluster.stranger().request("GET", "/api/v1/pods", headers={"Authorization": "Bearer wrong"})
    assert (answer.code, answer.json["reason"], answer.json["message"]) == (401, "Unauthorized", "Unauthorized")


def test_update_without_a_version_overwrites_and_without_a_change_keeps_the_version(
    cluster: Client, config_maps: str
) -> None:
    cluster.create(config_maps, {"metadata": {"name": "a"}, "data": {"n": "1"}})
    second = cluster.put(f"{config_maps}/a", {"metadata": {"name": "a"}, "data": {"n": "2"}})
    assert second["data"] == {"n": "2"}
    assert cluster.put(f"{config_maps}/a", second)["metadata"] == second["metadata"]


def test_one_of_concurrent_updates_wins(cluster: Client, config_maps: str) -> None:
    base = cluster.create(config_maps, {"metadata": {"name": "a"}, "data": {}})

    def attempt(number: int) -> int:
        return cluster.request("PUT", f"{config_maps}/a", base | {"data": {"by": str(number)}}).code

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(attempt, range(8))) == [200] + [409] * 7


def test_dry_run_changes_nothing(cluster: Client, config_maps: str) -> None:
    assert cluster.create(config_maps, {"metadata": {"name": "a"}}, dryRun="All")["metadata"]["uid"]
    assert cluster.request("GET", f"{config_maps}/a").code == 404
    cluster.create(config_maps, {"metadata": {"name": "a"}})
    assert cluster.delete(f"{config_maps}/a", dryRun="All")["status"] == "Success"
    cluster.get(f"{config_maps}/a")


def test_pods_get_the_defaults_that_clients_rely_on(cluster: Client, pods: str) -> None:
    manifest = pod(
        nodeSelector={"contract/node": "none"},
        containers=[
            {
                "name": "main",
                "image": "example.org/image",
                "ports": [{"containerPort": 80}],
                "readinessProbe": {"httpGet": {"port": 80}},
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
    )
    created = cluster.create(pods, manifest)
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert (spec["dnsPolicy"], spec["enableServiceLinks"]) == ("ClusterFirst", True)
    assert (spec["schedulerName"], spec["serviceAccountName"]) == ("default-scheduler", "default")
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "Always"
    assert container["ports"][0]["protocol"] == "TCP"
    assert container["readinessProbe"]["periodSeconds"] == 10
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert (created["status"]["phase"], created["status"]["qosClass"]) == ("Pending", "Guaranteed")


def _broken(**changes: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "i:1"} | changes]}


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"containers": []}, "spec.containers", "FieldValueRequired"),
        (_broken(image=""), "spec.containers[0].image", "FieldValueRequired"),
        (_broken(name="Main"), "spec.containers[0].name", "FieldValueInvalid"),
        (_broken(volumeMounts=[{"name": "v", "mountPath": "/v"}]), "spec.containers[0].volumeMounts[0].name",
         "FieldValueNotFound"),
        (_broken(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), "spec.containers[0].resources.requests",
         "FieldValueInvalid"),
        (_broken(ports=[{"containerPort": 0}]), "spec.containers[0].ports[0].containerPort", "FieldValueRequired"),
        (_broken() | {"restartPolicy": "Sometimes"}, "spec.restartPolicy", "FieldValueNotSupported"),
        (_broken() | {"volumes": [{"name": "v"}, {"name": "v"}]}, "spec.volumes[1].name", "FieldValueDuplicate"),
    ],
)  # fmt: skip
def test_invalid_pod_is_refused_with_its_causes(
    cluster: Client, pods: str, spec: dict[str, Any], field: str, reason: str
) -> None:
    status = cluster.expect(422, "POST", pods, pod("bad") | {"spec": spec})
    assert (status["reason"], status["details"]["kind"], status["details"]["name"]) == ("Invalid", "Pod", "bad")
    assert status["message"].startswith('Pod "bad" is invalid: ')
    assert (field, reason) in {(cause["field"], cause["reason"]) for cause in status["details"]["causes"]}


METADATA: dict[str, tuple[dict[str, Any], set[str]]] = {
    **{f"the name {name[:12]!r}": ({"name": name}, {"metadata.name"})
       for name in ("Upper", "under_score", "-dash", "a" * 254, "sp ace")},
    **{f"the label {labels}"[:40]: ({"labels": labels}, {"metadata.labels"})
       for labels in ({"a": "sp ace"}, {"a": "x" * 64}, {"/a": "x"}, {"a/b/c": "x"}, {"a": "-x"})},
    "a finalizer without a domain": ({"finalizers": ["hold"]}, {"metadata.finalizers[0]"}),
    "an incomplete owner": ({"ownerReferences": [{"kind": "Pod", "name": "p"}]},
                            {"metadata.ownerReferences.apiVersion", "metadata.ownerReferences.uid"}),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "fields"), METADATA.values(), ids=METADATA)
def test_invalid_metadata_is_refused_with_its_fields(
    cluster: Client, config_maps: str, metadata: dict[str, Any], fields: set[str]
) -> None:
    status = cluster.expect(422, "POST", config_maps, {"metadata": {"name": "a", **metadata}})
    assert {cause["field"] for cause in status["details"]["causes"]} == fields


def test_value_that_cannot_be_decoded_is_refused(cluster: Client, pods: str, secrets_path: str) -> None:
    answer = cluster.request("POST", pods, pod() | {"spec": _broken(resources={"limits": {"cpu": "lots"}})})
    assert answer.code in (400, 422)
    assert "quantities must match the regular expression" in answer.json["message"]
    assert cluster.request("POST", secrets_path, {"metadata": {"name": "s"}, "data": {"a": "!"}}).code in (400, 422)


def test_extended_resources_are_whole_and_not_overcommitted(cluster: Client, pods: str) -> None:
    half = _broken(resources={"limits": {"example.org/gpu": "500m"}})
    fewer = _broken(resources={"limits": {"example.org/gpu": "2"}, "requests": {"example.org/gpu": "1"}})
    for spec in (half, fewer):
        assert cluster.expect(422, "POST", pods, pod() | {"spec": spec})["reason"] == "Invalid"


def test_pods_spec_stays_as_it_was_but_for_the_image(cluster: Client, pods: str) -> None:
    created = cluster.create(pods, pod())
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.org/image:2"}]
    assert cluster.patched(f"{pods}/p", image, "json")["spec"]["containers"][0]["image"].endswith(":2")
    status = cluster.patch(f"{pods}/p", {"spec": {"hostname": "other"}}, "merge")
    assert status.code == 422
    assert status.json["message"].startswith(
        'Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`'
    )
    assert cluster.get(f"{pods}/p")["metadata"]["uid"] == created["metadata"]["uid"]


def test_status_is_written_through_its_own_path_only(cluster: Client, pods: str) -> None:
    cluster.create(pods, pod())
    claimed = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    assert cluster.patched(f"{pods}/p", claimed)["status"]["phase"] == "Pending"
    changed = {"status": {"phase": "Running", "podIP": "10.0.0.1"}, "spec": {"hostname": "other"}}
    running = cluster.patched(f"{pods}/p/status", changed)
    assert running["status"]["podIP"] == "10.0.0.1"
    assert "hostname" not in running["spec"]


def test_secrets_plain_strings_become_data(cluster: Client, secrets_path: str) -> None:
    created = cluster.create(secrets_path, {"metadata": {"name": "s"}, "stringData": {"token": "abc"}})
    assert created["data"] == {"token": "YWJj"}
    assert "stringData" not in created
    assert created["type"] == "Opaque"


def test_unknown_priority_class_is_forbidden(cluster: Client, pods: str) -> None:
    status = cluster.expect(403, "POST", pods, pod(priorityClassName="no-such-class"))
    assert "no PriorityClass with name no-such-class was found" in status["message"]


def test_lists_are_of_one_moment_and_can_be_paged(cluster: Client, config_maps: str) -> None:
    for number in range(7):
        cluster.create(config_maps, {"metadata": {"name": f"page-{number}", "labels": {"paged": "yes"}}})
    first = cluster.get(config_maps, limit=3, labelSelector="paged")
    assert first["kind"] == "ConfigMapList"
    cluster.create(config_maps, {"metadata": {"name": "page-55", "labels": {"paged": "yes"}}})
    cluster.delete(f"{config_maps}/page-6")
    names, page = [], first
    while True:
        names += [item["metadata"]["name"] for item in page["items"]]
        if not page["metadata"].get("continue"):
            break
        page = cluster.get(config_maps, limit=3, labelSelector="paged", **{"continue": page["metadata"]["continue"]})
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names == [f"page-{number}" for number in range(7)]


def test_next_page_of_a_list_that_is_too_old_has_expired(cluster: Client, config_maps: str) -> None:
    for name in ("one", "two"):
        cluster.create(config_maps, {"metadata": {"name": name}})
    token = cluster.get(config_maps, limit=1)["metadata"]["continue"]
    place = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    old = base64.urlsafe_b64encode(json.dumps(place | {"rv": 1}).encode()).decode().rstrip("=")
    answer = cluster.request("GET", config_maps, query={"limit": 1, "continue": old})
    if answer.code == 200:  # a cluster so young that it remembers its first moment: there was nothing
        assert answer.json["items"] == []
    else:
        assert (answer.code, answer.json["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            {"resourceVersionMatch": "Exact"},
            422,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        ({"resourceVersionMatch": "Odd", "resourceVersion": "1"}, 422, 'Unsupported value: "Odd"'),
        ({"watch": "true", "sendInitialEvents": "true"}, 422, "requires setting resourceVersionMatch"),
        ({"limit": "many"}, 400, 'strconv.ParseInt: parsing "many": invalid syntax'),
        ({"continue": "nonsense"}, 400, "continue"),
        ({"resourceVersion": "soon"}, 400, "resourceVersion"),
    ],
)
def test_options_of_a_list_that_contradict_each_other_are_refused(
    cluster: Client, config_maps: str, options: dict[str, str], code: int, words: str
) -> None:
    assert words in cluster.expect(code, "GET", config_maps, **options)["message"]


def test_collection_is_deleted_by_selector(cluster: Client, config_maps: str) -> None:
    for number in range(3):
        cluster.create(config_maps, {"metadata": {"name": f"c-{number}", "labels": {"n": str(number)}}})
    cluster.delete(config_maps, labelSelector="n in (0,2)")
    left = [item["metadata"]["name"] for item in cluster.get(config_maps)["items"]]
    assert [name for name in left if name.startswith("c-")] == ["c-1"]
