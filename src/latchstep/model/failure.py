"""What a provider's refusal means: HTTP status and error body become one `ModelError`.

Rule: a structured code decides first, then the wording (only for overflow of the context), then the status.
Throttling is never taken for overflow. The text keeps the provider's own words, in one line.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from latchstep.core.message import clean
from latchstep.errors import ModelError, ModelErrorKind

MAX_WORDS = 500
"""Characters of a provider's own words that are kept in an error."""

_CODES: dict[str, ModelErrorKind] = {
    "context_length_exceeded": "context_overflow",
    "model_context_window_exceeded": "context_overflow",
    "exceed_context_size_error": "context_overflow",
    "model_max_prompt_tokens_exceeded": "context_overflow",
    "request_too_large": "context_overflow",
    "insufficient_quota": "quota",
    "billing_hard_limit_reached": "quota",
    "billing_not_active": "quota",
    "billing_error": "quota",
    "insufficient_balance": "quota",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "rate_limited": "rate_limited",
    "too_many_requests": "rate_limited",
    "resource_exhausted": "rate_limited",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "server_is_overloaded": "overloaded",
    "engine_overloaded": "overloaded",
    "service_unavailable": "overloaded",
    "unavailable": "overloaded",
    "api_error": "server",
    "server_error": "server",
    "internal_error": "server",
    "internal_server_error": "server",
    "timeout_error": "timeout",
    "invalid_api_key": "auth",
    "authentication_error": "auth",
    "permission_error": "permission",
    "permission_denied": "permission",
    "model_not_found": "not_found",
    "not_found_error": "not_found",
    "content_filter": "filtered",
    "content_policy_violation": "filtered",
    "tool_use_failed": "protocol",  # Groq: the model wrote a call that its server could not read
    "unauthenticated": "auth",
    "api_key_invalid": "auth",
    "deadline_exceeded": "timeout",
    "throttlingexception": "rate_limited",  # Bedrock, in the stream
    "serviceunavailableexception": "overloaded",
    "modeltimeoutexception": "timeout",
    "validationexception": "bad_request",
    "cancelled": "server",
    "aborted": "server",
    "invalid_argument": "bad_request",
    "invalid_request_error": "bad_request",
}

_STATUSES: dict[int, ModelErrorKind] = {
    401: "auth",
    402: "quota",
    403: "permission",
    404: "not_found",
    405: "not_found",
    408: "timeout",
    409: "server",
    413: "context_overflow",
    425: "server",
    429: "rate_limited",
    498: "overloaded",  # Groq: capacity exceeded
    503: "overloaded",
    529: "overloaded",
}

_OVERFLOW = re.compile(
    r"prompt is too long"
    r"|exceeds? (?:the |this )?(?:model'?s? )?(?:maximum |max |available )?context"
    r"|(?:maximum|configured|available|model'?s?) context (?:length|size|window)"
    r"|context (?:length|size|window|limit)[^.]{0,40}exceed"
    r"|exceed[^.]{0,60}context (?:length|size|window|limit)"
    r"|input (?:token count|is too long)|too many input tokens"
    r"|context (?:size )?overflows?|reduce the length of the (?:messages|prompt)"
    r"|request payload size exceeds"
    r"|maximum prompt length|prompt exceeds max|range of input length|tokens in the prompt|conversation is too long"
    r"|(?:prompt|input) (?:length|tokens?)[^.]{0,40}exceed|exceed\w* (?:the )?(?:model token limit|max message tokens)"
    r"|context length of only|greater than the context length|`inputs` tokens",
    re.I,
)
_THROTTLED = re.compile(r"throttl|rate.?limit|too many requests|please wait|try again (?:later|in)|workers busy", re.I)
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SPAN = r"([0-9]+(?:\.[0-9]+)?) ?(milliseconds?|ms|seconds?|s|minutes?|m|hours?|h|days?|d)(?![a-z])"
_HINT = re.compile(rf"(?:try again|retry) (?:in|after) ((?:{_SPAN} ?)+)", re.I)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def http_failure(status: int, headers: Mapping[str, str], body: str, url: str) -> ModelError:
    """The error of an answer that is not a success, or that is a web page. `headers` have lower-case names."""
    if 300 <= status < 400:
        to = clean(headers.get("location", "another place"))[:200]
        text = f"{url} redirects to {to}; redirects are not followed: set base_url to where the service is"
        return ModelError("bad_request", text, status=status)
    if body.lstrip("\ufeff \t\r\n")[:1] == "<" or "text/html" in headers.get("content-type", ""):
        kind = kind_of_status(status) if status >= 500 or status in (401, 403, 408, 429) else "bad_request"
        text = f"{url} answered with a web page (status {status}): check base_url, and any proxy or login in between"
        return ModelError(kind, text, status=status, retry_after=retry_after(headers))
    failure = body_failure(load_body(body), status=status, wait=retry_after(headers), url=url)
    if status == 429 and failure.retry_after is None:
        failure.retry_after = _reset(headers)
    return failure


def body_failure(body: Any, *, status: int | None = None, wait: float | None = None, url: str = "") -> ModelError:
    """The error in a decoded body, or in an event of a stream that began well (then without a status)."""
    error = body.get("error", body) if isinstance(body, dict) else body
    codes = _codes(error)
    reasons, delay = _google_details(error)
    codes += reasons
    for code in codes:
        if status is None and code.isascii() and code.isdecimal() and 400 <= int(code[:4]) < 600:
            status = int(code[:4])  # OpenRouter puts the upstream's status into `code`
    words = _words(error, body)
    if not words:
        at = f" (status {status})" if status else ""
        words = f"{url or 'the server'} gave no reason{at}{': ' if body else ''}{clean(_flat(body))[:MAX_WORDS]}"
    kind = _kind(codes, status, words)
    if wait is None:
        hint = _HINT.search(words)
        wait = _span(hint[1]) if delay is None and hint else delay
    if kind == "not_found" and url:
        at = "" if url in words else f"at {url}; "
        words += f" ({at}is the model's name right? base_url usually ends in the API's version, such as /v1)"
    return ModelError(kind, words, status=status, retry_after=wait)


def no_answer(text: str) -> ModelError:
    """The error of a whole body, sent as a success, that holds no answer: what it says, or what it is."""
    body = load_body(text)
    if isinstance(body, dict) and _words(body.get("error", body), body):
        return body_failure(body)
    return ModelError("protocol", f"the server answered, but with no answer: {' '.join(clean(text[:200]).split())}")


def _kind(codes: list[str], status: int | None, words: str) -> ModelErrorKind:
    known = [_CODES[code] for code in codes if code in _CODES]
    throttled = status in (429, 503, 529) or "rate_limited" in known or bool(_THROTTLED.search(words))
    if "quota" in known:
        return "quota"
    if status == 413 or "context_overflow" in known or (not throttled and _OVERFLOW.search(words)):
        return "context_overflow"
    specific = [kind for kind in known if kind not in ("bad_request", "context_overflow")]
    if specific:
        return specific[0]
    if status is not None and status != 400:
        return kind_of_status(status)
    return "bad_request" if status == 400 or "bad_request" in known else "server"


def kind_of_status(status: int) -> ModelErrorKind:
    return _STATUSES.get(status) or ("server" if status >= 500 else "bad_request")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server says to wait, from `retry-after-ms` or `retry-after` (RFC 9110, 10.2.3); junk is None."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _reset(headers: Mapping[str, str]) -> float | None:
    """Seconds until the last of the limits that are used up is reset; other limits tell nothing about this request.

    `x-ratelimit-reset-requests: 6m0s` (OpenAI, Groq; https://platform.openai.com/docs/guides/rate-limits) and
    `anthropic-ratelimit-requests-reset: 2026-01-01T00:00:00Z` (https://docs.claude.com/en/api/rate-limits).
    """
    waits: list[float] = []
    for name, value in headers.items():
        known = name.startswith(("x-ratelimit-reset-", "anthropic-ratelimit-")) and "reset" in name
        if known and headers.get(name.replace("reset", "remaining"), "0").strip() == "0":
            wait = _span(value) if name[0] == "x" else _until(value)
            waits += [] if wait is None else [wait]
    return max(waits, default=None)


def _until(text: str) -> float | None:
    from datetime import UTC, datetime

    try:
        date = datetime.fromisoformat(text.strip())
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _span(text: str) -> float | None:
    """Seconds of `1s`, `6m0s`, `120ms`, `1.5 seconds` or a plain number; None for anything else."""
    text = text.strip().lower()
    if not re.fullmatch(rf"(?:{_SPAN} ?)+", text):
        return _number(text)
    total = 0.0
    for number, unit in re.findall(_SPAN, text):
        total += float(number) / 1000 if unit.startswith(("ms", "mil")) else float(number) * _UNITS[unit[0]]
    return total if math.isfinite(total) else None


def _number(text: str) -> float | None:
    if not _SECONDS.fullmatch(text.strip()):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def load_body(text: str) -> Any:
    """The JSON value in a body of errors, or the text itself."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value[0] if isinstance(value, list) and value else value  # Gemini wraps its error in a list


def _codes(error: Any) -> list[str]:
    if not isinstance(error, dict):
        return []
    found = [error.get(key) for key in ("code", "type", "status")]
    return [str(value).lower() for value in found if isinstance(value, str | int) and not isinstance(value, bool)]


def _google_details(error: Any) -> tuple[list[str], float | None]:
    """(codes, seconds to wait) in `google.rpc` details: ErrorInfo, QuotaFailure and RetryInfo.

    A quota per day counts as used up; one per minute passes by itself (https://ai.google.dev/gemini-api/docs/rate-limits).
    """
    details = error.get("details") if isinstance(error, dict) else None
    codes: list[str] = []
    wait: float | None = None
    for detail in details if isinstance(details, list) else ():
        if not isinstance(detail, dict):
            continue
        if isinstance(reason := detail.get("reason"), str):
            codes.append(reason.lower())
        if "PerDay" in _flat(detail.get("violations")):
            codes.append("insufficient_quota")
        if isinstance(delay := detail.get("retryDelay"), str):
            wait = _number(delay.strip().removesuffix("s"))
    return codes, wait


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else ""
    except (ValueError, RecursionError):
        return ""


def _words(error: Any, body: Any) -> str:
    """The provider's own words in one line. Shapes: OpenAI, FastAPI (`detail`), Mistral, OpenRouter (`metadata`)."""
    found: list[str] = []
    for holder in (error, body):
        if isinstance(holder, str):
            found.append(holder)
        elif isinstance(holder, dict):
            for key in ("message", "detail", "error_description", "title", "msg"):
                value = _flat(holder.get(key))
                if value:
                    found.append(value)
                    break
            metadata = holder.get("metadata")
            if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
                found.append(metadata["raw"])
        if found:
            break
    return clean(" ".join(" ".join(found)[: 4 * MAX_WORDS].split()))[:MAX_WORDS]
