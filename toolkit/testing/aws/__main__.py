"""`python -m toolkit.testing.aws --port N [--state FILE]`: AWS, simulated, on loopback until stopped."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from toolkit.testing.aws.amis import catalogue


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m toolkit.testing.aws", description=__doc__)
    parser.add_argument("--port", type=int, default=5566, help="0 takes a free one")
    parser.add_argument("--state", type=Path, help="a file that gets url, pid and the account's ids as JSON")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    try:
        with tempfile.TemporaryDirectory(prefix="pd-aws-") as folder:
            return _run(Path(folder), options.port, options.state, until_eof=options.until_eof)
    except KeyboardInterrupt:
        return 0


def _run(folder: Path, port: int, state: Path | None, *, until_eof: bool) -> int:
    (folder / "amis.json").write_text(json.dumps(catalogue()))
    os.environ["MOTO_AMIS_PATH"] = str(folder / "amis.json")  # moto reads it when it is imported
    from toolkit.testing.aws.server import Application, serve

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = Application()
    server = serve(application, port)
    url = f"http://127.0.0.1:{server.port}"
    os.environ["MOTO_PORT"] = str(server.port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    application.open(url)
    if state:
        new = state.with_name(f"{state.name}.new")
        new.write_text(json.dumps({"url": url, "pid": os.getpid(), "ids": application.ids}))
        new.replace(state)
    print(f"AWS is simulated at {url}", flush=True)
    if until_eof:
        sys.stdin.read()
    else:
        thread.join()
    server.shutdown()
    return 0


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
