"""A web server of shards, and what is made of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from files_of_sources import ENDINGS, Sample, write
from loaders import build_loader

from augment.data.dataset import Split
from augment.pipeline.batch import Batch
from augment.recipe.plan import build_plan
from augment.recipe.steps import parse_aug

PLAN = build_plan(parse_aug({"size": 16, "train": {"random_crop": {}, "flip": {"p": 0.5}}}), "train")


@dataclass
class Server:
    """A web server that hands out a folder, how it misbehaves, and what it was asked for."""

    folder: Path
    address: str = ""
    faults: dict[str, list[Any]] = field(default_factory=dict)  # by name: of its next answers, the last one for good
    tags: Counter[str] = field(default_factory=Counter)  # by name: the version that the ETag says
    gets: Counter[str] = field(default_factory=Counter)
    heads: Counter[str] = field(default_factory=Counter)
    left: threading.Event = field(default_factory=threading.Event)  # whether a client has gone amid an answer

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Hand out a folder, which is made."""
    state = Server(folder)
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, get = self.path.strip("/"), self.command == "GET"
            state.gets[name] += get
            state.heads[name] += not get
            faults = state.faults.get(name, [""])
            fault = faults[0] if len(faults) == 1 or not get else faults.pop(0)
            file = state.folder / name
            body = file.read_bytes() if file.exists() else b""
            self.send_response(fault if isinstance(fault, int) else 200 if body else 404)
            if not get or fault not in ("short", "endless"):
                self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{state.tags[name]}"')
            self.end_headers()
            while get and fault == "late" and state.heads[name] < 2:
                time.sleep(0.01)
            if get:
                try:
                    self.wfile.write(body[: len(body) // 2] if fault in ("cut", "drip", "short") else body)
                    while fault == "endless":
                        self.wfile.write(bytes(2**16))
                    while fault == "drip":
                        self.wfile.write(b"x")
                        time.sleep(0.1)
                except OSError:
                    state.left.set()
                state.tags[name] += fault == "change"

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    state.address = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()


def shards(source: str, folder: Path, samples: list[Sample], count: int = 2) -> str:
    """Write shards; return what names them all."""
    for number in range(count):
        write(source, folder, f"train-{number}", samples[len(samples) // count * number :][: len(samples) // count])
    return f"train-{{0..{count - 1}}}.{ENDINGS[source]}"


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {"train": url, "val_fraction": 0.5, **more}


def left(folder: str) -> list[str]:
    """What is in a folder of shards."""
    return sorted(file.name for file in Path("outputs/data", folder).glob("*/*"))


def passes(split: Split, size: int, **order: Any) -> list[list[tuple[bytes, list[int], list[int]]]]:
    """Return the images, indices and targets of each batch of two epochs, the second one resumed in its middle."""

    def values(batch: Batch) -> tuple[bytes, list[int], list[int]]:
        return batch.images.numpy().tobytes(), batch.indices.tolist(), batch.targets.tolist()

    begun, resumed = (build_loader(PLAN, split, batch_size=size, seed=1, **order) for _ in range(2))
    first, second = list(map(values, begun)), [values(next(iter(begun)))]
    resumed.load_state_dict(begun.state_dict())
    begun.close()
    second += map(values, resumed)
    resumed.close()
    return [first, second]
