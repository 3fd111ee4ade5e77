"""What the Manager holds, for whom and how long: a real API server, both databases, pods that come and go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from dlspawner.clients.kubernetes import NODES, PODS, ObjectNotFound
from dlspawner.core import naming
from dlspawner.core.job import JobState
from dlspawner.manager.admission.service import AdmissionRequest
from dlspawner.manager.controllers.leader import LeaderElector
from dlspawner.manager.db.repository import JobRepository, NotLeader
from dlspawner.manager.db.store import Database, DatabaseUnavailable
from dlspawner.manager.state.job_store import Transaction
from tests.component.manager.manager_harness import NAMESPACE, Office, ask, pod_of, settled, until, wants
from tests.component.manager.queue_helpers import hub_starts, is_due, service, started

pytestmark = pytest.mark.real


def states(acting: LeaderElector) -> dict[str, JobState]:
    """Every live job and where it stands."""
    assert acting.admission is not None
    return {job: record.job.state for job, record in acting.admission.store.records.items()}


async def became(acting: LeaderElector, job: str, *reasons: str) -> None:
    """All that became of a job is this; it is written down a moment after it has been decided."""

    async def written() -> bool:
        return [reason for _, _, reason in await acting.ledger.events(job)] == [*reasons]

    await until(written, f"{job}: {reasons}")


async def test_of_fifty_questions_at_once_exactly_eight_are_admitted(office: Office, db_url: str) -> None:
    async with office.manager() as acting:
        answers = await asyncio.gather(*(ask(acting, wants(f"u{number}")) for number in range(50)))
        assert [answer.decision for answer in answers].count("admit") == 8
        assert {answer.decision for answer in answers} == {"admit", "wait"}


async def test_a_question_that_is_asked_again_gets_the_same_answer_and_costs_nothing(
    office: Office, db_url: str
) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        first, again = await ask(acting, question), await ask(acting, question)
        assert (first.decision, again.decision) == ("admit", "admit")
        assert again.seconds <= first.seconds
    async with office.manager() as other:
        assert (await ask(other, question)).decision == "admit"
        assert (await ask(other, wants("bob"))).decision == "wait"


async def test_an_admission_names_the_nodes_however_often_it_is_asked_for(office: Office) -> None:
    office.set_quota(24)
    await office.make_node("gpu-2")
    small, large, pair = wants("bob", gpus=2), wants(gpus=8), two_pods("carol")
    async with office.manager() as acting:
        assert (await ask(acting, small)).nodes == ("gpu-1",)
        for _ in range(2):
            assert (await ask(acting, large)).nodes == ("gpu-2",), "the only one that is empty"
        waits = await ask(acting, pair)
        assert (waits.decision, waits.nodes) == ("wait", ())
        none = await ask(acting, wants("carl", gpus=0))
        assert (none.decision, none.nodes) == ("admit", ()), "Kubernetes' scheduler spreads those without GPUs"
        await office.make_node("gpu-3")
        await until(lambda: is_due(acting, pair), "it has its turn")
        for _ in range(2):
            assert (await ask(acting, pair)).nodes == ("gpu-1", "gpu-3"), "one for each pod"


async def test_a_job_s_id_is_no_one_else_s(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await ask(acting, question)
        answer = await ask(acting, replace(question, user="mallory"))
        assert (answer.decision, answer.reason) == ("refuse", "job-id")


async def test_who_asks_for_a_priority_of_others_is_told_the_teams_own(office: Office) -> None:
    teams = "teams:\n  default: {title: Everybody, quota: {gpu: 8}, priorities: [prod, test]}\n"
    (office.folder / "teams.yaml").write_text(teams)
    async with office.manager() as acting:
        answer = await ask(acting, wants(priority="top"))
    assert (answer.decision, answer.reason) == ("refuse", "not-allowed")
    assert answer.sentences[0] == "Team Everybody may not use the priority “top”; choose one of these: prod, test."


async def test_who_must_wait_is_told_why_and_what_would_start(office: Office) -> None:
    async with office.manager() as acting:
        await ask(acting, wants(gpus=5))
        answer = await ask(acting, wants("bob", gpus=4))
    assert answer.decision == "wait"
    assert answer.sentences == (
        "Team Everybody uses 5 of its 8 GPUs of type gpu; this job needs 4.",
        "It is number 1 in the queue and starts by itself.",
        "What would start at once: 3 GPUs of type gpu.",
    )


async def test_what_can_never_start_is_refused_with_the_limit(office: Office) -> None:
    office.set_quota(4)
    async with office.manager() as acting:
        answer = await ask(acting, wants(gpus=5))
    assert answer.decision == "refuse"
    assert "Team Everybody has a quota of 4 GPUs of type gpu; you asked for 5." in answer.sentences[0]


async def test_gpus_are_free_when_the_pod_is_gone_and_not_when_its_deletion_was_asked_for(
    office: Office, db_url: str
) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await office.bind(pod)
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
        await office.delete(pod)
        await until(lambda: states(acting)[question.job] is JobState.STOPPING, "it stops")
        assert (await ask(acting, wants("bob"))).decision == "wait"
        await office.delete(pod, grace=0)
        await until(lambda: question.job not in states(acting), "it is gone")
        assert (await ask(acting, wants("bob"))).decision == "admit"
        await became(acting, question.job, "admitted", "pod-seen", "running", "deleted", "gone")


async def test_a_pod_that_has_ended_holds_nothing_although_it_is_still_there(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question), phase="Succeeded")
        await until(lambda: question.job not in states(acting), "it has ended")
        assert (await ask(acting, wants("bob"))).decision == "admit"


async def test_a_reservation_without_a_pod_expires_after_its_deadline(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        office.clock.moved += timedelta(seconds=61)
        assert (await ask(acting, question)).decision == "refuse", "after the deadline no pod is made"
        assert (await ask(acting, wants("bob"))).decision == "wait", "a request may still be on its way"
        office.clock.moved += timedelta(seconds=5)
        await until(lambda: question.job not in states(acting), "it has expired")
        await became(acting, question.job, "admitted", "pod-never-created")
        assert (await ask(acting, question)).reason == "over"


async def test_what_the_hub_gives_back_is_free_at_once(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        assert acting.admission is not None
        await acting.admission.release_reservation(question.job, "alice")
        assert (await ask(acting, wants("bob"))).decision == "admit"


async def test_a_reservation_expires_although_another_jobs_pod_says_to_be_its(office: Office) -> None:
    runs, question = wants("bob"), wants()
    async with office.manager() as acting:
        await ask(acting, runs)
        await office.bind(await office.make_pod(runs))
        await until(lambda: states(acting)[runs.job] is JobState.RUNNING, "it runs")
        await ask(acting, question)
        claims = {"metadata": {"labels": {naming.JOB_LABEL: question.job}}}
        await office.cluster.patch(PODS, "jupyter-bob", claims, NAMESPACE)
        office.clock.moved += timedelta(seconds=70)
        await until(lambda: states(acting) == {runs.job: JobState.RUNNING}, "it has expired")


async def test_a_pod_that_comes_too_late_is_charged_and_stopped(office: Office) -> None:
    question = wants(gpus=8)
    async with office.manager() as acting:
        await ask(acting, question)
        office.clock.moved += timedelta(seconds=70)
        await until(lambda: not states(acting), "it has expired")
        pod = await office.make_pod(question)
        await office.bind(pod)
        await stopped(office, pod["metadata"]["name"])
        waits = wants("bob")
        assert (await ask(acting, waits)).decision == "wait", "the late pod is still there"
        await office.delete(pod, grace=0)
        await until(lambda: not any(job.startswith("pod-") for job in states(acting)), "it is gone")
        assert (await ask(acting, waits)).decision == "admit", "also if its turn has come meanwhile"


async def test_a_pod_with_forged_labels_is_charged_and_stopped_and_the_real_one_goes_on(office: Office) -> None:
    question = wants(gpus=2)
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
        more = replace(question, pods=wants(gpus=6).pods)
        forged = await office.make_pod(more, name="forged", labels=labels(question))
        await office.bind(forged)
        await stopped(office, "forged")
        assert (await ask(acting, wants("bob"))).reason == "team-quota", "it is charged as long as it is there"
        await office.delete(forged, grace=0)
        await until(lambda: not any(job.startswith("pod-") for job in states(acting)), "it is gone")
        carol = wants("carol", gpus=5)

        async def starts() -> bool:
            """At once, or in turn: a list of pods may be older than the news that this one is gone."""
            return (await ask(acting, carol)).decision == "admit"

        await until(starts, "bob has one of six")
        assert states(acting)[question.job] is JobState.RUNNING
        assert "deletionTimestamp" not in (await office.pods())["jupyter-alice"]["metadata"]


@pytest.mark.parametrize("restarted", [False, True], ids=["one Manager", "the next Manager"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in its turn"])
async def test_a_pod_that_is_made_before_the_hubs_own_and_says_to_be_it_is_stopped_and_the_hubs_own_is_the_job(
    office: Office, waits: bool, restarted: bool
) -> None:
    holder, question = wants("holder", gpus=8), wants()
    async with office.manager() as acting:
        if waits:
            await ask(acting, holder)
            assert (await ask(acting, question)).decision == "wait"
            hub_starts(office, acting, question)
            await service(acting).release_reservation(holder.job, "holder")
            await until(lambda: started(acting, question), "it may have a pod")
        else:
            assert (await ask(acting, question)).decision == "admit"
        if not restarted:
            await starts_beside_what_is_forged(office, acting, question)
    if restarted:
        async with office.manager() as acting:
            await starts_beside_what_is_forged(office, acting, question)


async def starts_beside_what_is_forged(office: Office, acting: LeaderElector, question: AdmissionRequest) -> None:
    for name, nonce in (("without", ""), ("another", "guessed")):
        await office.bind(await office.make_pod(replace(question, nonce=nonce), name=name))
        await stopped(office, name)
    pod = await office.make_pod(question)
    await office.bind(pod)
    await until(lambda: states(acting).get(question.job) is JobState.RUNNING, "it runs")
    for name in ("without", "another"):
        await office.cluster.delete(PODS, name, NAMESPACE, grace=0)
    await until(lambda: states(acting) == {question.job: JobState.RUNNING}, "nobody else holds anything")
    assert "deletionTimestamp" not in (await office.pods())[pod["metadata"]["name"]]["metadata"]


async def test_a_copy_of_the_hubs_pod_that_the_next_manager_sees_first_is_stopped(office: Office) -> None:
    secret = wants().nonce
    question = wants(nonce=naming.sign(secret, f"{NAMESPACE}/jupyter-alice"))
    async with office.manager() as acting:
        assert (await ask(acting, question)).decision == "admit"
    for name in ("jupyter-alice", "a-copy"):  # lists are by name
        await office.bind(await office.make_pod(replace(question, nonce=secret), name=name))
    async with office.manager() as acting:
        await stopped(office, "a-copy")
        await until(lambda: states(acting).get(question.job) is JobState.RUNNING, "it runs")
        assert "deletionTimestamp" not in (await office.pods())["jupyter-alice"]["metadata"]


async def test_a_job_of_a_hub_that_tells_no_nonce_is_its_pods(office: Office) -> None:
    question = wants(nonce="")
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")


async def test_another_start_cannot_use_what_was_admitted(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        assert (await ask(acting, question)).decision == "admit"
        assert (await ask(acting, replace(question, nonce="another"))).reason == "over"
        assert (await ask(acting, question)).decision == "admit"


async def test_a_pod_whose_labels_contradict_each_other_is_stopped(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await ask(acting, wants("bob", gpus=8))
        await office.make_pod(question, name="liar", labels={**labels(question), naming.USER_LABEL: "bob"})
        await stopped(office, "liar")


async def test_a_pod_that_is_no_job_is_left_alone_and_takes_room(office: Office) -> None:
    async with office.manager() as acting:
        pod = await office.make_pod(wants(gpus=7), name="other", labels={}, annotations={})
        await office.bind(pod)
        assert acting.admission is not None
        book = acting.admission.store
        await until(lambda: book.nodes["gpu-1"].others.gpus, "it is seen")
        assert (await ask(acting, wants("bob", gpus=2))).reason == "no-node"
        assert (await ask(acting, wants("bob"))).decision == "admit"
        assert "deletionTimestamp" not in (await office.pods())["other"]["metadata"]


async def stopped(office: Office, name: str) -> None:
    """Its deletion is asked for, or it is gone already."""

    async def asked() -> bool:
        try:
            pod = await office.cluster.get(PODS, name, NAMESPACE)
        except ObjectNotFound:
            return True
        return "deletionTimestamp" in pod["metadata"]

    await until(asked, f"{name} is stopped")


@pytest.mark.parametrize("restarted", [False, True], ids=["one Manager", "the next Manager"])
async def test_a_stray_that_has_ended_and_is_still_there_is_not_taken_for_the_job_that_it_says_it_is(
    office: Office, restarted: bool
) -> None:
    holder, waits = wants("holder", gpus=8), wants("alice")
    async with office.manager() as acting:
        await ask(acting, holder)
        assert (await ask(acting, waits)).decision == "wait"
        await office.bind(await office.make_pod(replace(waits, pods=wants(gpus=0).pods), name="stray"))
        await stopped(office, "stray")
        await office.finish("stray", 143, "Error")
        await until(lambda: not any(job.startswith("pod-") for job in states(acting)), "it has ended")
        await settled(acting)
        if not restarted:
            await starts_beside_its_stray(office, acting, holder, waits)
    if restarted:
        async with office.manager() as acting:
            await starts_beside_its_stray(office, acting, holder, waits)


async def starts_beside_its_stray(
    office: Office, acting: LeaderElector, holder: AdmissionRequest, waits: AdmissionRequest
) -> None:
    hub_starts(office, acting, waits)
    await service(acting).release_reservation(holder.job, "holder")
    await until(lambda: started(acting, waits), "it may have a pod")
    await office.finish("stray", 137, "Error")  # what its node still has to say
    pod = await office.make_pod(waits)
    await office.bind(pod)
    await until(lambda: states(acting).get(waits.job) is JobState.RUNNING, "it runs")
    await office.cluster.delete(PODS, "stray", NAMESPACE, grace=0)
    await office.cluster.patch(PODS, pod["metadata"]["name"], {"metadata": {"annotations": {"seen": "yes"}}}, NAMESPACE)
    await settled(acting)
    assert states(acting) == {waits.job: JobState.RUNNING}
    assert "deletionTimestamp" not in (await office.pods())[pod["metadata"]["name"]]["metadata"]


def labels(question: AdmissionRequest) -> dict[str, str]:
    job = naming.PodIdentity(question.job, question.user, "", "default", "tiny", 1)
    return naming.job_labels(job)


async def test_after_a_restart_what_went_meanwhile_is_free_and_what_runs_is_held(office: Office, db_url: str) -> None:
    stays, goes = wants("alice", gpus=4), wants("bob", gpus=4)
    async with office.manager() as acting:
        for question in (stays, goes):
            await ask(acting, question)
            await office.bind(await office.make_pod(question))
        await until(lambda: set(states(acting).values()) == {JobState.RUNNING}, "both run")
    await office.cluster.delete(PODS, "jupyter-bob", NAMESPACE, grace=0)
    async with office.manager() as acting:
        assert states(acting) == {stays.job: JobState.RUNNING}
        assert (await ask(acting, wants("carol", gpus=5))).decision == "wait"
        assert (await ask(acting, wants("carol", gpus=4))).decision == "admit"


async def test_jobs_that_the_hub_has_made_without_asking_go_on_and_are_charged(office: Office) -> None:
    before, meanwhile = wants(gpus=3), wants("bob", gpus=2)
    await office.bind(await office.make_pod(before))
    async with office.manager() as acting:
        await office.bind(await office.make_pod(meanwhile))  # by a Hub that has not been restarted yet
        both = dict.fromkeys([before.job, meanwhile.job], JobState.RUNNING)
        await until(lambda: states(acting) == both, "both are counted")
        assert (await ask(acting, wants("carol", gpus=4))).decision == "wait"
        await became(acting, before.job, "adopted")


async def test_without_any_quota_nothing_is_stopped(office: Office) -> None:
    (office.folder / "teams.yaml").write_text("teams: {default: {title: Everybody}}")
    async with office.manager() as acting:
        await ask(acting, wants(gpus=0))
        question = wants("bob")
        await office.bind(await office.make_pod(question))
        await until(lambda: states(acting).get(question.job) is JobState.RUNNING, "it is counted")
        assert "deletionTimestamp" not in (await office.pods())["jupyter-bob"]["metadata"]


async def test_one_manager_acts_and_the_other_takes_over_when_it_stops(office: Office, db_url: str) -> None:
    async with office.manager() as first, office.manager(waits=False) as second:
        await ask(first, wants(gpus=8))
        before = first.admission
        assert before is not None
        assert second.admission is None
        await first.ledger.release(first.identity)
        await until(lambda: second.admission is not None, "it has taken over")
        assert (await ask(second, wants("bob"))).decision == "wait"
        with pytest.raises(NotLeader):  # whether or not it knows by now, of what it wrote itself
            await before.review(wants("carol", gpus=0))


async def test_a_manager_that_died_is_replaced_when_its_lease_has_expired(office: Office, db_url: str) -> None:
    store = await asyncio.to_thread(Database.open, office.db_url)
    term = await JobRepository(store).acquire("dead", 1)
    async with office.manager() as acting:
        assert (await ask(acting, wants())).decision == "admit"
        assert await JobRepository(store).acquire("dead", 1) is None
        with pytest.raises(NotLeader):
            await JobRepository(store).write(term or 0, [])
    await store.close()


async def test_a_change_of_the_quota_counts_and_a_broken_file_does_not(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    office.set_quota(4)
    later = wants("bob")
    async with office.manager() as acting:
        (office.folder / "teams.yaml").write_text("teams: [")
        await until(lambda: "the last good version stays" in caplog.text, "it is said")
        assert (await ask(acting, wants(gpus=4))).decision == "admit"
        assert (await ask(acting, later)).reason == "team-quota", "four, of a node's eight"
        office.set_quota(5)
        await until(lambda: states(acting)[later.job] is JobState.STARTING, "it is read")
        assert (await ask(acting, wants("carol"))).reason == "team-quota"


async def test_a_cordoned_node_takes_nothing_new(office: Office) -> None:
    question = wants()
    async with office.manager() as acting:
        await office.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
        assert acting.admission is not None
        book = acting.admission.store
        await until(lambda: book.nodes["gpu-1"].cordoned, "it is seen")
        answer = await ask(acting, question)
        assert (answer.decision, answer.reason) == ("wait", "no-node")
        await office.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": None}})
        await until(lambda: states(acting)[question.job] is JobState.STARTING, "it is open again")


async def test_while_the_database_is_away_nobody_is_admitted_and_afterwards_nothing_is_lost(office: Office) -> None:
    question = wants(gpus=6)
    engine = create_engine(office.db_url)
    async with office.manager() as acting:
        await ask(acting, question)
        pod = await office.make_pod(question)
        await office.bind(pod)
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "it runs")
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE job_events RENAME TO away"))
        with pytest.raises(DatabaseUnavailable):
            await ask(acting, wants("bob"))
        await office.delete(pod, grace=0)
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO job_events"))
        await until(lambda: question.job not in states(acting), "that the pod went is written down all the same")
        answers = [await ask(acting, wants(f"u{number}")) for number in range(9)]
        assert [answer.decision for answer in answers] == ["admit"] * 8 + ["wait"], "bob holds nothing"
    engine.dispose()


async def test_who_asks_a_manager_that_has_stopped_acting_is_told_so(office: Office) -> None:
    async with office.manager() as acting:
        desk = acting.admission
        assert desk is not None
    with pytest.raises(NotLeader):
        await desk.store.transact(lambda turn: turn.now)


async def test_a_write_that_was_on_its_way_when_its_manager_began_anew_changes_nothing(
    office: Office, db_url: str
) -> None:
    store = await asyncio.to_thread(Database.open, office.db_url)
    ledger = JobRepository(store)
    before = await ledger.acquire("me", 30)
    after = await ledger.acquire("me", 30)
    assert (before, after) == (1, 2)
    assert not await ledger.renew(1, 30)
    with pytest.raises(NotLeader):
        await ledger.write(1, [])
    await store.close()


async def test_what_a_team_has_used_lately_survives_a_restart(office: Office, db_url: str) -> None:
    async with office.manager() as acting:
        await ask(acting, wants(gpus=8))
        assert acting.admission is not None
        book = acting.admission.store
        await book.transact(Transaction.persist_usage)
        office.clock.moved += timedelta(seconds=10)
        await book.transact(Transaction.persist_usage)
        used = book.cluster_state.usage["default"]
        assert used.amount >= 8000 * 9.9
    async with office.manager() as acting:
        assert acting.admission is not None
        assert acting.admission.store.cluster_state.usage["default"].amount == pytest.approx(used.amount, rel=0.1)


def two_pods(user: str = "alice") -> AdmissionRequest:
    """A job of two pods with four GPUs each; on two nodes of eight they may be together or apart."""
    return replace(wants(user, gpus=4), pods=wants(user, gpus=4).pods * 2)


async def test_a_job_of_several_pods_holds_a_node_for_each_and_is_free_when_the_last_is_gone(
    office: Office, db_url: str
) -> None:
    office.set_quota(16)
    await office.make_node("gpu-2")
    question = two_pods()
    async with office.manager() as acting:
        assert acting.admission is not None
        book = acting.admission.store
        assert (await ask(acting, question)).decision == "admit"
        first = await office.make_pod(question, name="pod-1")
        await office.bind(first, "gpu-1")
        await until(lambda: "gpu-1" in book.records[question.job].job.nodes, "the first is bound")
        assert states(acting)[question.job] is JobState.STARTING, "one of two runs"
        await office.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
        second = await office.make_pod(question, name="pod-2")
        await office.bind(second, "gpu-2")
        await until(lambda: states(acting)[question.job] is JobState.RUNNING, "both run")
        assert set(book.records[question.job].job.nodes) == {"gpu-1", "gpu-2"}
        assert book.cluster_state.rooms["gpu-1"].gpus["nvidia.com/gpu"] == 4000
        await office.cluster.patch(NODES, "gpu-1", {"spec": {"unschedulable": None}})
    async with office.manager() as acting:
        assert states(acting) == {question.job: JobState.RUNNING}
        await office.delete(first, grace=0)
        for user in ("bob", "dave"):
            assert (await ask(acting, wants(user, gpus=4))).decision == "admit", "of sixteen eight are free"
        assert (await ask(acting, wants("carol"))).decision == "wait", "all eight are held until both are gone"
        await office.delete(second, grace=0)
        await until(lambda: question.job not in states(acting), "it is gone")
        assert (await ask(acting, wants("carol"))).decision == "admit"


async def test_of_a_job_whose_second_pod_never_came_only_the_first_is_held(office: Office) -> None:
    question = two_pods()
    async with office.manager() as acting:
        await ask(acting, question)
        await office.bind(await office.make_pod(question, name="pod-1"))
        await until(lambda: acting.admission and acting.admission.store.records[question.job].seen, "one is seen")
        assert (await ask(acting, wants("bob"))).decision == "wait"
        office.clock.moved += timedelta(seconds=66)
        await until(
            lambda: states(acting)[question.job] is JobState.RUNNING, "the other one is not waited for any more"
        )
        assert (await ask(acting, wants("bob", gpus=4))).decision == "admit"


async def test_what_pods_of_other_namespaces_hold_of_a_node_is_not_free(office: Office) -> None:
    office.watch_all_namespaces = True
    system = pod_of(wants("root", gpus=0), name="driver", labels={}, annotations={})
    system["spec"]["nodeName"] = "gpu-1"
    system["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "31950m"}, "limits": {"cpu": "31950m"}}
    await office.cluster.create(PODS, system, "kube-system")
    async with office.manager() as acting:
        assert acting.admission is not None
        book = acting.admission.store
        await until(lambda: book.nodes["gpu-1"].others.cpu_milli, "it is seen")
        assert (await ask(acting, wants())).decision == "admit"
        assert (await ask(acting, wants("bob"))).reason == "no-node", "the node's CPU is used up"
        await office.cluster.delete(PODS, "driver", "kube-system", grace=0)
        await until(lambda: not book.nodes["gpu-1"].others.cpu_milli, "it is gone")
        assert (await ask(acting, wants("bob"))).decision == "admit"


async def test_a_lease_that_a_wrong_clock_wrote_holds_nobody_up(office: Office) -> None:
    store = await asyncio.to_thread(Database.open, office.db_url)
    assert await JobRepository(store).acquire("dead", 86400) == 1
    async with office.manager() as acting:
        assert (await ask(acting, wants())).decision == "admit"
    await store.close()
