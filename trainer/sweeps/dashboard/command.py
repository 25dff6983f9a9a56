"""`python -m trainer dashboard [FOLDER]`: show all runs and sweeps of a folder in one HTML file."""

import sys
from collections.abc import Sequence
from pathlib import Path

from augment.cli.parser import Parser, output, readable_errors, whole_number, writing
from augment.support.errors import UserError
from augment.support.files import shown, write_atomically
from augment.support.reading import check_path
from augment.support.text import amount, printable
from trainer.run.run_folder import find_runs
from trainer.sweeps.dashboard.content import collect
from trainer.sweeps.dashboard.server import Server, Watched, render

DASHBOARD_FILE = "dashboard.html"
PORT = 8321

_EXAMPLES = f"""\
  outputs                            write outputs/{DASHBOARD_FILE}; outputs is the default
  outputs/2026-07-28 --out day.html  runs and sweeps of a day, into another file
  --watch                            serve it at http://127.0.0.1:{PORT}, and refresh it while runs are in progress"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser(
        "trainer dashboard", "Show all runs and sweeps of a folder in one HTML file.", _EXAMPLES, arguments="[FOLDER]"
    )
    parser.add_argument(
        "--out", type=output, metavar="FILE", help=f"the file to write (default: {DASHBOARD_FILE} in the folder)"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page to this machine, and keep it up to date")
    parser.add_argument(
        "--port", type=whole_number(0, 65535), metavar="N", help=f"port of --watch; 0: any free one (default: {PORT})"
    )
    with readable_errors():
        options, folders, overrides = parser.split_paths(arguments)
        if overrides or len(folders) > 1:
            raise UserError(f"{[*overrides, *folders[1:]][0]}: not allowed here. Allowed: one folder.")
        if options.port is not None and not options.watch:
            raise UserError("--port: has no effect without --watch. Allowed: --watch --port N.")
        folder = folders[0] if folders else Path("outputs")
        file = check_path(options.out or folder / DASHBOARD_FILE)
        if options.watch and not folders:
            with writing(str(folder)):
                folder.mkdir(exist_ok=True)  # the first run may be about to begin
        runs = find_runs([folder])
        with writing(str(file)):
            write_atomically(file, render(collect(runs, folder, file.absolute().parent)))
        sys.stdout.write(printable(f"{shown(file)}: {amount(len(runs), 'run')}\n"))
        if options.watch:
            _serve(Watched(folder), PORT if options.port is None else options.port)
    return 0


def _serve(watched: Watched, port: int) -> None:
    """Serve the page until Ctrl-C."""
    try:
        server = Server(watched, port)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}. Allowed: a free port; 0 finds one.") from error
    with server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_port}/ shows it, and refreshes it; Ctrl-C ends this.\n")
        sys.stdout.flush()
        server.serve_forever()
