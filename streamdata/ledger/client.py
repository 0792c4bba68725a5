"""A ledger's client: `call → (client, number, arguments) → the server; again if no answer came → result or error`."""

import json
import os
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from streamdata.errors import SourceError, StaleAttempt
from streamdata.fields import RECORD
from streamdata.ledger.prompts import Prompt, PromptIds, WrongCall, read_ids
from streamdata.ledger.scores import read_scores
from streamdata.ledger.server import MAX_BODY
from streamdata.ledger.wire import from_json

_TIMEOUT_S: Final = 60.0
"""Until a request is repeated: a `take` may read from a slow store."""
_WAITS_S: Final = (0.0, 0.1, 0.5, 2.0, 5.0, 10.0)
"""Before each attempt of a request."""
_ERRORS: Final = {
    HTTPStatus.CONFLICT: StaleAttempt,
    HTTPStatus.SERVICE_UNAVAILABLE: SourceError,
    HTTPStatus.UNAUTHORIZED: PermissionError,
}
"""By the status of an answer; others are ValueErrors."""


class LedgerClient:
    """Takes and settles prompts of a ledger in another process; see `PromptLedger.serve`.

    It settles what it took: prompts of other clients are StaleAttempt. Requests whose answer was lost are repeated, and
    done once. It may be used in several threads, one request at a time; in async code call it by `asyncio.to_thread`.
    Sent to another process, it is another client there.

    Each method raises PermissionError if the token is another, and ConnectionError if the server does not answer.

    Args:
        url: That of the LedgerServer.
        token: Its token.

    Raises:
        ValueError: `url` is not such a url.
    """

    def __init__(self, url: str, token: str) -> None:
        split = urlsplit(url)
        if split.scheme != "http" or split.hostname is None or split.port is None:
            raise WrongCall("LedgerClient", "a url such as http://127.0.0.1:8000", url, "Give LedgerServer.url.")
        self._url, self._address, self._token, self._lock = url, (split.hostname, split.port), token, Lock()
        self._begin()

    def _begin(self) -> None:
        self._process, self._name, self._number = os.getpid(), uuid.uuid4().hex, 0
        self._attempts: dict[int, int] = {}
        """By id, of prompts that it took and has not settled."""

    def __reduce__(self) -> tuple[type["LedgerClient"], tuple[str, str]]:
        return LedgerClient, (self._url, self._token)

    def take(self, n: int, lease_s: float = 600) -> list[Prompt]:
        """Take prompts, as `PromptLedger.take` does. In samples, tuples have become lists.

        Args:
            n: How many, up to 1,024.
            lease_s: After so many seconds each is given to another taker, unless it is settled or renewed.

        Raises:
            ValueError: As of `PromptLedger.take`.
            SourceError: The ledger could not read its stream, or a sample cannot be sent as JSON.
        """
        prompts = [Prompt(*fields) for fields in self._ask("take", n=n, lease_s=lease_s)]
        for prompt in prompts:
            self._attempts[prompt.id], prompt.sample[RECORD] = prompt.attempt, tuple(prompt.sample[RECORD])
        return [prompt._replace(record_id=tuple(prompt.record_id)) for prompt in prompts]  # type: ignore[arg-type]

    def done(self, ids: PromptIds) -> None:
        """Settle prompts that have been trained on, as `PromptLedger.done` does."""
        self._settle("done", ids)

    def drop(self, ids: PromptIds, reason: str) -> None:
        """Settle prompts that will not be trained on, as `PromptLedger.drop` does."""
        self._settle("drop", ids, reason=reason)

    def retry(self, ids: PromptIds, after: int = 0) -> None:
        """Have prompts taken again, by any taker, as `PromptLedger.retry` does."""
        self._settle("retry", ids, after=after)

    def renew(self, ids: PromptIds) -> None:
        """Begin the leases of prompts anew, each for the `lease_s` that it was taken with."""
        self._settle("renew", ids)

    def score(self, ids: PromptIds, values: Iterable[float]) -> None:
        """Set the scores of prompts' records, whoever took them, as `PromptLedger.score` does."""
        named = [prompt_id for prompt_id, _ in read_ids("LedgerClient.score", ids)]
        self._ask("score", ids=named, values=read_scores(values))

    def stats(self) -> dict[str, float]:
        """Return the counts of `PromptLedger.stats`."""
        found: dict[str, float] = self._ask("stats")
        return found

    @property
    def finished(self) -> bool:
        """Whether nothing is open or due at the ledger, and its stream has ended."""
        return bool(self.stats()["finished"])

    def _settle(self, operation: str, ids: PromptIds, **more: object) -> None:
        named = read_ids(f"LedgerClient.{operation}", ids)
        # Always with an attempt: 0, which is none's, of a prompt that this client did not take.
        pairs = [(one, self._attempts.get(one, 0) if attempt is None else attempt) for one, attempt in named]
        self._ask(operation, ids=pairs, **more)
        for prompt_id, _ in pairs if operation != "renew" else ():
            self._attempts.pop(prompt_id, None)

    def _ask(self, operation: str, **arguments: object) -> Any:
        with self._lock:
            if self._process != os.getpid():  # a fork is another client
                self._begin()
            self._number += 1
            body = json.dumps({"client": self._name, "number": self._number, **arguments}).encode()
            if len(body) > MAX_BODY:
                expected = f"at most {MAX_BODY:,} bytes in a request"
                raise WrongCall(f"LedgerClient.{operation}", expected, len(body), "Name fewer prompts at once.")
            status, content = self._answer(operation, body)
        try:
            answer = from_json(content)
            if status == HTTPStatus.OK:
                return answer
            error = _ERRORS.get(HTTPStatus(status), ValueError)(answer["error"])
        except (ValueError, KeyError, TypeError):
            raise ConnectionError(
                f"LedgerClient: expected a LedgerServer at {self._url}, got another: {status}"
            ) from None
        raise error

    def _answer(self, operation: str, body: bytes) -> tuple[int, bytes]:
        for wait_s in _WAITS_S:
            time.sleep(wait_s)
            try:
                with closing(HTTPConnection(*self._address, timeout=_TIMEOUT_S)) as connection:
                    connection.request("POST", f"/{operation}", body, {"Authorization": f"Bearer {self._token}"})
                    response = connection.getresponse()
                    return response.status, response.read()
            except (OSError, HTTPException) as error:
                problem = error
        raise ConnectionError(
            f"LedgerClient.{operation}: {self._url} did not answer {len(_WAITS_S)} times; the last time: {problem}\n"
            "  Perhaps the request was done: prompts that it took come again when their leases end."
        ) from problem
