"""The users' commands: their requests and their output.

JOB is the name of one of the user's own servers, ``NAME/SERVER`` for another user's, or a job's id; without it the
default server is meant. A server's name means its latest job.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlspawner.client import login, submission, text
from dlspawner.client.service import ClientProblem, Refused, Service, part
from dlspawner.client.ssh import login_words, pins

_ID = re.compile(r"j-[a-z2-7]{12}")
_LOOK_SECONDS = 2.0
_LOOKS = 60  # requests for the job of a start that the Hub has begun
Given = argparse.Namespace
Command = Callable[[Given, Service], int]


def run(given: Given) -> int:
    try:
        code: int = given.run(given, login.service(os.environ)) if given.asks else given.run(given)
    except ClientProblem as problem:
        print(f"dlspawner: {text.printable(str(problem))}", file=sys.stderr)
        return problem.code
    except submission.Malformed as problem:
        print(f"dlspawner: {text.printable(str(problem))}", file=sys.stderr)
        return 2
    except UnicodeEncodeError:
        print("dlspawner: An argument is not text that can be sent: it is not UTF-8.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def log_in(given: Given) -> int:
    url = login.url_of(given.url)
    asked = f"Token, from {url}/hub/token: "
    token = login.checked(getpass.getpass(asked) if sys.stdin.isatty() else sys.stdin.readline())
    service = Service(url, token)
    name = service.me()
    service.get("jobs", {"limit": "1"})
    login.keep(login.kept_file(os.environ), url, token)
    print(f"Logged in to {url} as {text.printable(name)}.")
    return 0


def submit(given: Given, service: Service) -> int:
    wanted = submission.changed(_read(given.file), given.set, given.server)
    before = _latest(service, wanted.user or service.me(), wanted.server) if given.wait else None
    job = service.post("jobs", wanted.body(), repeats=True)
    if given.wait:
        job = _until_it_runs(service, _until_it_is_one(service, job, before), say=not given.json)
    return _asked_for(given, job)


def _asked_for(given: Given, job: dict[str, Any]) -> int:
    if given.json:
        return _print_json(job)
    named = f" ({job['id']})" if job.get("id") else ""
    print(text.printable(f"{text.title(job, job.get('user', ''))}{named}: {text.standing(job)}"))
    if job.get("why"):
        print(text.printable(job["why"]))
    return 1 if job["state"] == "ended" else 0


def _read(name: str) -> submission.Submission:
    try:
        content = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise submission.Malformed(f"{name} cannot be read: {reason}.") from None
    return submission.read(content, "standard input" if name == "-" else name)


def _until_it_is_one(service: Service, job: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """Waits for the job of a start that the Hub still prepares: the first one after ``before``, the server's latest."""
    for _ in range(_LOOKS):
        if job.get("id"):
            return job
        service.sleep(_LOOK_SECONDS)
        found = _latest(service, job["user"], job["server"])
        if found is not None and (before is None or found["id"] != before["id"]):
            return found
    raise ClientProblem("The Hub has begun the start, and nothing came of it. Its page Jobs says why.", 1)


def _until_it_runs(service: Service, job: dict[str, Any], *, say: bool) -> dict[str, Any]:
    """Waits until the job runs or has ended; prints what it waits for whenever that changes."""
    said = ""
    while job["state"] not in {"running", "ended"}:
        told = text.printable(f"{text.standing(job)}. {job.get('why') or ''}".strip())
        if say and told != said:
            print(told, file=sys.stderr)
            said = told
        service.sleep(_LOOK_SECONDS)
        job = service.get(f"jobs/{part(job['id'])}")
    return job


def list_jobs(given: Given, service: Service) -> int:
    me = service.me()
    filters = {"user": given.user, "team": given.team, "template": given.template, "gpu_type": given.gpu_type}
    query: dict[str, str | list[str]] = {name: value for name, value in filters.items() if value}
    if not given.everybody and "user" not in query:
        query["user"] = me
    if given.server is not None:  # the default one has an empty name
        query["server"] = given.server
    if given.since:
        query["since"] = given.since
    if given.state or not given.all:
        query["state"] = given.state or ["live"]
    jobs, more = service.first("jobs", query, given.limit)
    if more:
        print(f"dlspawner: There are more than these {len(jobs)}; --limit N shows up to N.", file=sys.stderr)
    if given.json:
        return _print_json(jobs)
    if not jobs:
        usual = not given.all and not given.state
        print("No running or queued jobs; --all shows those that have ended." if usual else "No jobs.")
        return 0
    now = datetime.now(UTC)
    rows = [
        (
            text.title(job, me),
            text.standing(job),
            job["template"],
            text.gpus(job),
            text.team(job),
            _age(job, now),
            job["id"],
        )
        for job in jobs
    ]
    print(text.table(("JOB", "STATE", "TEMPLATE", "GPUS", "TEAM", "AGE", "ID"), rows))
    return 0


def _age(job: Mapping[str, Any], now: datetime) -> str:
    return text.age(job.get("started") or job.get("submitted"), now)


def show(given: Given, service: Service) -> int:
    job = find(service, given.job)
    if job["id"] != given.job:  # a list has fewer fields
        job = service.get(f"jobs/{part(job['id'])}")
    answer = service.get(f"jobs/{part(job['id'])}/events")
    events, shortened = answer["items"], bool(answer.get("shortened"))
    if given.json:
        return _print_json({**job, "events": events, "events_shortened": shortened})
    stop, ways = job.get("stop") or {}, job.get("endpoints") or ()
    pairs = [
        ("Job", text.title(job)),
        ("Id", job["id"]),
        ("State", text.standing(job)),
        ("Why", job.get("why")),
        ("Starts", text.probably(job, datetime.now(UTC))),
        ("Template", job["template"]),
        ("Team", text.team(job, named=True)),
        ("Priority", job.get("priority")),
        ("GPUs", text.gpus(job)),
        ("CPUs", job.get("cpu")),
        ("Memory", text.size(job.get("memory_bytes"))),
        *((name, f"{amount:g}") for name, amount in (job.get("extended") or {}).items()),
        ("Preemptible", "yes, outside the quota" if job.get("preemptible") else "no"),
        ("Nodes", ", ".join(node for node in job.get("nodes") or () if node)),
        ("Ports", "; ".join(map(text.ports, job.get("ports") or ()))),
        ("Submitted", text.moment(job.get("submitted"))),
        ("Started", text.moment(job.get("started"))),
        ("Leaves at", text.moment(job.get("notice"))),
        ("Ended", text.moment(job.get("ended"))),
        ("Stopped", stop.get("sentence")),
        *((way["name"].capitalize(), text.way(way) or service.address(way.get("url"))) for way in ways),
    ]
    print(text.facts(pairs))
    if events:
        print(f"\nOnly its latest {len(events)} transitions:" if shortened else "")
        rows = ((text.moment(one["at"]), one["state"], one["reason"], one["detail"]) for one in events)
        print(text.table(("WHEN", "STATE", "REASON", ""), rows))
    return 0


def events(given: Given, service: Service) -> int:
    """Prints the job's transitions, and Kubernetes' events of its pods if the user may read them, the oldest first."""
    path = f"jobs/{part(find(service, given.job)['id'])}"
    query = {"search": given.search} if given.search else {}
    answer = service.get(f"{path}/events", query)
    try:
        of_pods = service.get(f"{path}/pod-events", query)["items"]
    except Refused as no:
        if no.status != 403:
            raise
        print(f"dlspawner: {text.printable(str(no))}", file=sys.stderr)
        of_pods = []
    if given.json:
        shortened = bool(answer.get("shortened"))
        return _print_json({"events": answer["items"], "events_shortened": shortened, "pod_events": of_pods})
    rows = [(one["at"], one["state"], one["reason"], one["detail"]) for one in answer["items"]]
    rows += [(one["at"], "Kubernetes", one["reason"], _often(one)) for one in of_pods]
    rows.sort(key=lambda row: datetime.fromisoformat(row[0]))
    if not rows:
        print("No matching entries." if given.search else "Nothing is known of it.")
        return 0
    if answer.get("shortened"):
        print("dlspawner: Of its transitions only the latest are told, as there are very many.", file=sys.stderr)
    print(text.table(("WHEN", "STATE", "REASON", ""), ((text.moment(at), *rest) for at, *rest in rows)))
    return 0


def _often(one: Mapping[str, Any]) -> str:
    return f"{one['sentence']} ({one['count']} times)" if one["count"] > 1 else str(one["sentence"])


def find(service: Service, name: str) -> dict[str, Any]:
    """Returns the job that ``name`` means; the latest one of a server."""
    if _ID.fullmatch(name):
        job: dict[str, Any] = service.get(f"jobs/{name}")
        return job
    owner, slash, server = name.rpartition("/")
    user = owner if slash else service.me()
    found = _latest(service, user, server)
    if found is None:
        which = f"server {server!r}" if server else "default server"
        raise Refused(404, f"{user} has had no job on the {which} that you may see.")
    return found


def _latest(service: Service, user: str, server: str) -> dict[str, Any] | None:
    return next(service.items("jobs", {"user": user, "server": server, "limit": "1"}), None)


def kill(given: Given, service: Service) -> int:
    job = find(service, given.job)
    ended = job["state"] == "ended"
    if not ended:
        service.delete(f"jobs/{part(job['id'])}")
    if given.json:
        return _print_json(job if ended else service.get(f"jobs/{part(job['id'])}"))
    said = f"has ended already. {job.get('why') or ''}".strip() if ended else "asked to stop. Its files stay."
    print(text.printable(f"{text.title(job)} ({job['id']}): {said}"))
    return 0


def requeue(given: Given, service: Service) -> int:
    return _asked_for(given, _act(given, service, "requeue"))


def keep_alive(given: Given, service: Service) -> int:
    answer = _act(given, service, "keep-alive")
    if given.json:
        return _print_json(answer)
    print(text.printable(answer["sentence"]))
    return 0


def _act(given: Given, service: Service, action: str) -> dict[str, Any]:
    job = find(service, given.job)
    answer: dict[str, Any] = service.post(f"jobs/{part(job['id'])}/{action}", repeats=action != "requeue")
    return answer


def judge(action: str) -> Command:
    def judge(given: Given, service: Service) -> int:
        job = find(service, given.job)
        answer = service.post(f"jobs/{part(job['id'])}/{action}", {"reason": given.reason, **_one(given.request)})
        if given.json:
            return _print_json(answer)
        print(f"{text.printable(text.title(job))}: {'approved' if action == 'approve' else 'denied'}.")
        return 0

    return judge


def _one(request: str) -> dict[str, str]:
    return {"request": request} if request else {}


def ssh(given: Given, service: Service) -> int:
    job = find(service, given.job)
    command = next((way["command"] for way in job.get("endpoints") or () if way.get("command")), None)
    if command is None:
        raise ClientProblem(f"{text.title(job)} is {text.standing(job)} and offers no SSH.", 1)
    words, program = login_words(command), shutil.which("ssh")
    if program is None:
        raise ClientProblem(f"There is no ssh on this machine. The command is: {command}", 1)
    rest = given.rest[1:] if given.rest[:1] == ["--"] else given.rest
    pinned = pins(service, login.kept_file(os.environ).parent, rest)
    sys.stdout.flush()
    os.execv(program, ["ssh", *pinned, *words, *rest])  # noqa: S606 - no shell is wanted


def quota(given: Given, service: Service) -> int:
    items = list(service.items("quota"))
    if given.json:
        return _print_json(items)
    columns = ("entitled", "used", "free", "borrowed", "borrow_limit")
    rows = [
        (
            one["title"],
            one["gpu_type"] or one.get("resource"),
            *(str(one.get(name) if one.get(name) is not None else "-") for name in columns),
        )
        for one in items
    ]
    print(text.table(("TEAM", "GPU TYPE", "QUOTA", "USED", "FREE", "BORROWED", "MAY BORROW"), rows))
    return 0


def cluster(given: Given, service: Service) -> int:
    found = service.get("cluster")
    if given.json:
        return _print_json(found)
    columns = ("name", "total", "free", "most_on_one_node", "unschedulable", "waiting_gpus")
    rows = [[str(one[name]) for name in columns] for one in found["gpu_types"]]
    print(text.table(("GPU TYPE", "TOTAL", "FREE", "MOST ON ONE NODE", "CLOSED", "WAITED FOR"), rows))
    return 0


def drain(given: Given, service: Service) -> int:
    at = datetime.fromisoformat(given.at).astimezone(UTC).isoformat()
    service.post(f"nodes/{part(given.node)}/cordon", {"reason": given.message, "drain_at": at}, repeats=True)
    said, closed = "", False
    while True:
        nodes: list[dict[str, Any]] = service.get("cluster")["nodes"]
        found = next((one for one in nodes if one["name"] == given.node), None)
        if found is None:
            raise ClientProblem(f"{given.node} is no node of the cluster any more.", 1)
        if found["state"] == "ready" and closed:
            raise ClientProblem(f"{given.node} was opened again: its drain is over.", 1)
        closed = closed or found["state"] != "ready"
        free = closed and not found["jobs"]
        told = f"{given.node} is closed. Jobs there until {text.moment(at)}: {found['jobs']}."
        told = f"{given.node} is closed and free of jobs." if free else told
        done = free or given.no_wait
        if done and given.json:
            return _print_json(found)
        if told != said:
            print(text.printable(told), file=sys.stdout if done else sys.stderr)
            said = told
        if done:
            return 0
        service.sleep(_LOOK_SECONDS)


def cordon(given: Given, service: Service) -> int:
    return _change_node(given, service, "cordon", {"reason": given.message})


def uncordon(given: Given, service: Service) -> int:
    return _change_node(given, service, "uncordon", {})


def _change_node(given: Given, service: Service, action: str, body: dict[str, str]) -> int:
    service.post(f"nodes/{part(given.node)}/{action}", body, repeats=True)
    if given.json:
        return _print_json({})
    print(text.printable(f"{given.node}: {action}ed."))
    return 0


def queue(given: Given, service: Service) -> int:
    items = list(service.items("queue", {"limit": "500"}))
    if given.json:
        return _print_json(items)
    others = service.get("queue", {"limit": "1"}).get("others", 0)
    if items:
        print(_queue_table(items, service.me()))
    print(text.waiting(bool(items), others))
    return 0


def _queue_table(items: list[dict[str, Any]], me: str) -> str:
    now = datetime.now(UTC)
    rows = [
        (
            *(str(one["position"]), text.title(one, me), text.gpus(one), text.team(one), _age(one, now)),
            *(text.between(one.get("estimate"), now), one["why"]),
        )
        for one in items
    ]
    return text.table(("PLACE", "JOB", "GPUS", "TEAM", "AGE", "ESTIMATED START", "WHY"), rows)


def approvals(given: Given, service: Service) -> int:
    queries = [{"limit": "500"}] if given.all else [{"mine": "decide"}, {"mine": "asked", "state": "waiting"}]
    items = list({one["id"]: one for query in queries for one in service.items("approvals", query)}.values())
    if given.json:
        return _print_json(items)
    if not items:
        print("There are no requests." if given.all else "No request needs an approval; --all shows decided ones.")
        return 0
    rows = [(text.title(one), *(one.get(name) for name in ("state", "what", "why", "job", "id"))) for one in items]
    print(text.table(("JOB", "STATE", "WHAT", "WHY", "ID", "REQUEST"), rows))
    return 0


def _print_json(content: object) -> int:
    print(json.dumps(content, indent=2))
    return 0
