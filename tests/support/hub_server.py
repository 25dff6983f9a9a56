"""A server on this machine with the few endpoints of the Hugging Face Hub that pushing and loading a model need."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The state of the server: private or public repositories and their files.

    Attributes:
        private: whether each repository is private, by name.
        files: the content of each file, by repository and name.
        denied: whether the server refuses every request with 403.
    """

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.denied = False

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Return status, content (bytes or JSON) and headers."""
        parts = path.strip("/").split("?")[0].split("/")
        if parts[:2] == ["api", "validate-yaml"]:
            return 200, {"warnings": [], "errors": []}, {}
        if self.denied:
            return 403, {"error": "Forbidden"}, {}
        if parts[:3] == ["api", "repos", "create"]:
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}" if given.get("organization") else given["name"]
            if name in self.private:
                return 409, {"url": f"https://huggingface.co/{name}"}, {}
            self.private[name], self.files[name] = given.get("private") or given.get("visibility") == "private", {}
            return 200, {"url": f"https://huggingface.co/{name}"}, {}
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name not in self.private:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        files = self.files[name]
        what, revision = (*parts[4:], "", "")[:2] if parts[0] == "api" else parts[2:4]
        if what in ("revision", "resolve") and revision not in ("main", SHA):
            return 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"}
        if what == "resolve":  # USER/NAME/resolve/REVISION/FILE
            if (content := files.get("/".join(parts[4:]))) is None:
                return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
            return 200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": SHA}
        if what in ("", "revision"):
            siblings = [{"rfilename": file} for file in files]
            return 200, {"id": name, "sha": SHA, "private": self.private[name], "siblings": siblings}, {}
        if what == "tree":
            return 200, [_entry(file, content) for file, content in files.items()], {}
        if what == "preupload":
            wanted = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": file, "uploadMode": "regular", "shouldIgnore": False} for file in wanted]
            return 200, {"files": modes}, {}
        assert what == "commit"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return 200, {"success": True, "commitOid": SHA, "commitUrl": f"https://huggingface.co/{name}/commit/{SHA}"}, {}


def _entry(file: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub uses in place of the one on the internet."""
    from huggingface_hub import constants

    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content, headers = state.answer(self.command, self.path, body)
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in {"Content-Length": str(len(raw)), **headers}.items():
                self.send_header(key, value)
            if not isinstance(content, bytes):
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_GET = do_POST = do_HEAD = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", address, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    # It would store answers of this server in the user's cache, and use them in later tests.
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: None, raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
