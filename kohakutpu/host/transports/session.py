"""What clients of a server have in common: one request at a time, asked until it is answered, done once."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from kohakutpu.wording import counted

from ..transport import NoTransport, Transport, TransportError, Unanswered
from .stream import Dropped, Late, Stream

ATTEMPTS = 5  # times that one request is asked when connections are lost


class SessionTransport(Transport):
    """Numbered requests over a connection that may be lost: `_answer` and `_resume` speak the protocol.

    The server keeps the number and the answer of the last request, so that one which is asked again is not done again.
    `again_when_late` also asks again when no answer came within `timeout` seconds. When a request is given up, the
    session is over. `reconnected` and `stale` count lost connections and answers that nobody waited for any more.
    """

    again_when_late = False
    _stream: Stream | None = None
    _given_up = ""

    def __init__(self, address: tuple[str, int] | Path, timeout: float):
        self.address = address
        self.timeout = timeout
        self.reconnected = 0
        self.stale = 0
        self._session = secrets.token_hex(8)
        self._sequence = 0

    # ---- the protocol ------------------------------------------------------------------------------------

    def _resume(self, what: str) -> int:
        """Connect again and say who this is; the number of the last request that the server did."""
        raise NotImplementedError

    def _send(self, stream: Stream, message: Any) -> None:
        raise NotImplementedError

    def _answer(self, what: str) -> Any:
        """The answer to request `_sequence`. Raises `TransportError` when that is a refusal."""
        raise NotImplementedError

    def _fate(self) -> str:
        """What has become of the other side, to be added to an error."""
        return ""

    # ---- asking --------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return str(self.address) if isinstance(self.address, Path) else "{}:{}".format(*self.address)

    def _hang_up(self) -> None:
        if self._stream:
            self._stream.close()
            self._stream = None

    def _ask_again(self, what: str) -> None:
        last = self._resume(what)
        self.reconnected += 1
        if last not in (self._sequence - 1, self._sequence):
            raise NoTransport(
                f"the server on {self.where} is at request {last} of this session, and {self._sequence} was asked: "
                f"whether the {what} was done is not known"
            )

    def _number(self) -> int:
        """The number of a new request."""
        if self._given_up:
            raise NoTransport(f"the session with {self.where} ended when it gave up a {self._given_up}")
        self._sequence += 1
        return self._sequence

    def _converse(self, what: str, message: Any) -> Any:
        """The answer to `message`, which carries the number `_sequence`; `what` is the access, for errors."""
        failure: TransportError
        for attempt in range(ATTEMPTS):
            try:
                if self._stream is None:
                    self._ask_again(what)
                self._send(self._stream, message)
                return self._answer(what)
            except (Dropped, OSError) as error:
                failure = NoTransport(f"the connection to {self.where} was lost during a {what}: {reason(error)}")
            except Late:
                failure = Unanswered(
                    f"the {what} was not answered by {self.where} within {self.timeout:g} s, "
                    f"asked {counted(attempt + 1, 'time')}; "
                    f"the clock was at {self.now:,} {self.unit}"
                )
            except NoTransport as error:
                failure = error
                self._hang_up()
                break
            except TransportError:
                raise  # an answer, and whole
            except BaseException:
                self._hang_up()  # half an answer may be on its way
                raise
            self._hang_up()
            if isinstance(failure, Unanswered) and not self.again_when_late:
                break
            time.sleep(0.05 * attempt)
        self._given_up = what
        raise type(failure)(f"{failure}{self._fate()}")


def reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)
