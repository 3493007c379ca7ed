"""A headless Chromium over its debugging pipe: opens a page, evaluates JavaScript, presses keys, takes pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import ViewError

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """The path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


# Chromium reads commands from descriptor 3 and answers on 4, whichever ours are.
TRAMPOLINE = """
import os, sys
from fcntl import F_DUPFD, fcntl
ours = [fcntl(int(number), F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ours[0], 3)
os.dup2(ours[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab of `width` x `height` pixels; use as a context manager.

    `complaints` collects what the page wrote to its console as an error or warning, and its uncaught exceptions. Raises
    `ViewError` where no Chromium is installed, it ends, or an answer takes longer than `timeout` seconds.
    """

    def __init__(
        self, width: int = 1280, height: int = 900, *, scale: float = 1, dark: bool = False, timeout: float = 60
    ):
        path = find_browser()
        if path is None:
            raise ViewError(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._timeout = timeout
        self._profile = tempfile.TemporaryDirectory(prefix="kohakutpu-browser-", ignore_cleanup_errors=True)
        self._number = 0
        self._session: str | None = None
        self._buffer = b""
        self._events: list[dict] = []
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                TRAMPOLINE,
                str(read),
                str(write),
                path,
                *FLAGS,
                f"--user-data-dir={self._profile.name}",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
            )
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.call("Emulation.setEmulatedMedia", features=[scheme])
        except BaseException:
            self.close()
            raise

    def _receive(self) -> dict:
        """The next message. Raises `ViewError` when none comes in time."""
        end = time.monotonic() + self._timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise ViewError(f"the browser did not answer within {self._timeout} seconds")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ViewError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict) -> None:
        method, what = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(item.get("value", item.get("description"))) for item in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        self._events.append(message)

    def call(self, method: str, **params) -> dict:
        """One command of the DevTools protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ViewError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self._note(answer)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            message = self._receive()
            if "method" in message:
                self._note(message)

    def run(self, script: str):
        """The value of a JavaScript expression. Raises `ViewError` with what it threw."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ViewError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click into the middle of the first element that `selector` finds."""
        where = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A key, by its DOM name (`ArrowLeft`, ` `)."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self, *, height: int | None = None) -> bytes:
        """The page as PNG, from its top down to `height` pixels or its end."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(height or size["height"], size["height"]),
            "scale": 1,
        }
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        )

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_) -> None:
        self.close()
