"""A stand-in of the model hub: the HTTP calls that huggingface_hub makes, answered from memory.

Files come in as they do on the real hub: small ones inside the commit, large ones through the LFS
batch call, a PUT and a verification; a commit is taken only if every object it names has arrived.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standin_token_of_alice"
USER = "alice"


@dataclass
class Repo:
    """One repository: files by path, and what each commit changed."""

    private: bool = True
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"lfs\n"})
    commits: list[list[str]] = field(default_factory=list)

    @property
    def sha(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()


@dataclass
class Hub:
    """What the stand-in holds and how it misbehaves.

    ``faults`` maps a part of a path to the statuses that its next calls are answered with;
    ``writable`` are the namespaces that the token may write to.
    """

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=dict)
    writable: set[str] = field(default_factory=lambda: {USER})
    calls: list[str] = field(default_factory=list)


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    """Routes by path, as few as the client needs."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each reply waits 40 ms for a delayed ACK

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        self.hub.calls.append(f"{self.command} {path}")
        try:
            self._fail_if_told(path)
            self._route(path, body)
        except _Refused as refused:
            self._send(
                refused.status,
                {"error": str(refused)},
                {"X-Error-Code": refused.code, "X-Error-Message": str(refused)},
            )

    def _fail_if_told(self, path: str) -> None:
        for part, statuses in self.hub.faults.items():
            if part in path and statuses:
                raise _Refused(statuses.pop(0), "told to fail")

    def _route(self, path: str, body: bytes) -> None:
        if path.startswith("/lfs/"):
            return self._store(path.removeprefix("/lfs/"), body)
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            return self._send(200, {"type": "user", "name": USER, "orgs": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body))
        if path == "/lfs-verify":
            return self._verify(json.loads(body))
        return self._of_repo(path, body)

    def _of_repo(self, path: str, body: bytes) -> None:
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        name, _, rest = path.removeprefix("/api/models").strip("/").partition("/")
        owner, (name, _, rest) = name, rest.partition("/")
        repo = self.hub.repos.get(f"{owner}/{name}")
        if repo is None:
            raise _Refused(404, "Repository not found", "RepoNotFound")
        if rest == "preupload/main":
            return self._preupload(repo, json.loads(body))
        if rest == "commit/main":
            return self._commit(f"{owner}/{name}", repo, body)
        if rest.startswith("resolve/"):
            return self._file(repo, rest.split("/", 2)[2])
        return self._info(f"{owner}/{name}", repo)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if name.partition("/")[0] not in self.hub.writable:
            raise _Refused(403, "You don't have the rights to create a model under this namespace")
        exists = name in self.hub.repos
        if not exists:
            self.hub.repos[name] = Repo(private=asked.get("visibility") == "private")
        answer = {"url": f"{self.hub.url}/{name}", "name": name}
        self._send(409 if exists else 200, answer)

    def _validate(self, asked: dict[str, Any]) -> None:
        wrong = "license: nonsense" in asked["content"]
        errors = [{"message": '"license" must be one of [apache-2.0, mit, …]'}] if wrong else []
        self._send(400 if wrong else 200, {"errors": errors, "warnings": []})

    def _info(self, name: str, repo: Repo) -> None:
        self._send(
            200,
            {
                "id": name,
                "sha": repo.sha,
                "private": repo.private,
                "siblings": [{"rfilename": path} for path in repo.files],
            },
        )

    def _file(self, repo: Repo, path: str) -> None:
        if path not in repo.files:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        data = repo.files[path]
        marks = {"ETag": f'"{_git_oid(data)}"', "X-Repo-Commit": repo.sha}
        self._send(200, data, marks)

    def _preupload(self, repo: Repo, asked: dict[str, Any]) -> None:
        self._send(
            200,
            {
                "files": [
                    {
                        "path": item["path"],
                        "uploadMode": "lfs" if _is_large(item["path"]) else "regular",
                        "shouldIgnore": False,
                        "oid": _oid(item["path"], repo.files.get(item["path"])),
                    }
                    for item in asked["files"]
                ]
            },
        )

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for item in asked["objects"]:
            wanted = {"href": f"{self.hub.url}/lfs/{item['oid']}"}
            check = {"href": f"{self.hub.url}/lfs-verify"}
            known = item["oid"] in self.hub.objects
            actions = {} if known else {"actions": {"upload": wanted, "verify": check}}
            objects.append({"oid": item["oid"], "size": item["size"], **actions})
        self._send(200, {"transfer": "basic", "objects": objects})

    def _store(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "these bytes are not of that hash")
        self.hub.objects[oid] = body
        self._send(200, b"")

    def _verify(self, asked: dict[str, Any]) -> None:
        held = self.hub.objects.get(asked["oid"])
        if held is None or len(held) != asked["size"]:
            raise _Refused(400, "no such object")
        self._send(200, {})

    def _commit(self, name: str, repo: Repo, body: bytes) -> None:
        if name.partition("/")[0] not in self.hub.writable:
            raise _Refused(403, "no write access")
        taken: dict[str, bytes] = {}
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                taken[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise _Refused(400, f"{value['path']} was not uploaded")
                taken[value["path"]] = self.hub.objects[value["oid"]]
        repo.files |= taken
        repo.commits.append(sorted(taken))
        url = f"{self.hub.url}/{name}/commit/{repo.sha}"
        self._send(200, {"commitUrl": url, "commitOid": repo.sha, "success": True})

    def _send(self, status: int, data: object, headers: dict[str, str] | None = None) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            if value:
                self.send_header(key, value.encode("ascii", "replace").decode())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_large(path: str) -> bool:
    return path.endswith(".safetensors")


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _oid(path: str, data: bytes | None) -> str | None:
    if data is None:
        return None
    return hashlib.sha256(data).hexdigest() if _is_large(path) else _git_oid(data)


@contextmanager
def hub_standin() -> Iterator[Hub]:
    """A hub on a free port of this machine, for as long as the block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
