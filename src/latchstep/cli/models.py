"""`latchstep models`, and which model is used where none was named: what can be reached from here, found by trying.

A key is only seen to be there, and never shown or sent; a server on this machine is asked for its models.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from latchstep.core.printable import one_line
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import get
from latchstep.model.catalog import SERVICES, Service, elsewhere, key_variable, usual_url
from latchstep.model.wire import check_key, endpoint
from latchstep.session.blocking import run_blocking

from .screen import Screen

WITHIN = 1.0
"""Seconds in which a server on this machine must have listed its models."""

MAX_LIST = 1_000_000
"""Bytes of such a list; a longer one is none."""

SHOWN = 5
"""Names of a server's models that are shown."""

SPEAKS = {
    "anthropic": "Messages",
    "openai_responses": "Responses",
    "openai_chat": "Chat Completions",
    "gemini": "generateContent",
    "local": "in this process",
}


class Offer(msgspec.Struct, frozen=True):
    """One service. example: a whole name to type. usable: as far as could be tried. why: what was found."""

    service: str
    usable: bool
    why: str
    example: str


class _Entry(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Entry] | None  # Ollama says null where it has none


def list_models() -> int:
    """One line a service, and what is used without `--model`."""
    from .keys import bring_keys

    screen = Screen()
    bring_keys("")
    offers = survey()
    widest = max(len(example) for offer in offers if len(example := offer.example) <= 40)
    for offer in offers:
        mark = screen.style("✓", "green") if offer.usable else screen.style("-", "dim")
        speaks = SPEAKS[SERVICES[offer.service].wire]
        example = one_line(offer.example, 200).ljust(widest)
        screen.line(f"{mark} {offer.service.ljust(11)} {speaks.ljust(16)} {example} {one_line(offer.why, 200)}")
    screen.line()
    if named := os.environ.get("LATCHSTEP_MODEL"):
        screen.line(f"Without --model: {one_line(named, 200)}, as LATCHSTEP_MODEL says.")
    elif found := choose(offers):
        but = "" if found.usable else f", which cannot work: {one_line(found.why, 200)}"
        screen.line(f"Without --model: {one_line(found.example, 200)}{but}.")
    else:
        screen.line("Without --model nothing would be used: set a key, or start a server.")
    return 0


def survey() -> list[Offer]:
    """Every service, in the catalogue's order."""
    return run_blocking(_survey(list(SERVICES)))


def choose(offers: list[Offer] | None = None) -> Offer | None:
    """The first service whose key is set, else the first server that answers. `local` is too small to be chosen.

    Where a key is set, and `offers` are not given, no server is asked.
    """
    if offers is None:
        keyed = [name for name, service in SERVICES.items() if key_variable(service)]
        offers = run_blocking(_survey(keyed[:1] or [name for name, service in SERVICES.items() if not service.key]))
    keyed_offers = [offer for offer in offers if key_variable(SERVICES[offer.service])]
    answering = [offer for offer in offers if offer.usable and SERVICES[offer.service].base_url]
    return next(iter(keyed_offers + answering), None)


async def _survey(names: list[str]) -> list[Offer]:
    return await asyncio.gather(*(_examine(name, SERVICES[name]) for name in names))


async def _examine(name: str, service: Service) -> Offer:
    if service.key:
        return _with_key(name, service)
    if service.base_url:
        return await _server(name, service)
    return _built_in(name, service)


def _with_key(name: str, service: Service) -> Offer:
    example = f"{name}:{service.default}"
    host = elsewhere(service)
    variable = key_variable(service)
    if not variable:
        other = f"; {service.url} names {host}, which may want none" if host else ""
        return Offer(name, False, f"{service.key} is not set{other}", example)
    try:
        check_key(os.environ[variable], variable)
    except ModelError as error:
        return Offer(name, False, error.message, example)
    other = f"; {service.url} sends it to {host}" if host else ""
    return Offer(name, True, f"{variable} is set (not tried){other}", example)


async def _server(name: str, service: Service) -> Offer:
    example = f"{name}:NAME"
    try:
        url, shown = endpoint(usual_url(service), "/models")
    except DefinitionError as error:
        return Offer(name, False, f"{service.url} is no URL of a server: {error}", example)
    where = shown.removesuffix("/models")
    try:
        status, body = await get(url, within=WITHIN, most=MAX_LIST + 1)
    except ModelError as error:
        why = f"no answer within {WITHIN:g} s" if error.kind == "timeout" else "nothing answers"
        return Offer(name, False, f"{why} at {where}", example)
    models = _names(body) if status == 200 else None
    if models is None:
        return Offer(name, False, f"what answers at {where} lists no models (status {status})", example)
    if not models:
        return Offer(name, False, f"a server answers at {where}, and has no model", example)
    more = f" and {len(models) - SHOWN} more" if len(models) > SHOWN else ""
    listed = ", ".join(one_line(model, 60) for model in models[:SHOWN])
    chosen = next((model for model in models if "embed" not in model.lower()), models[0])
    return Offer(name, True, f"answers at {where}: {listed}{more}", f"{name}:{chosen}")


def _names(body: bytes) -> list[str] | None:
    try:
        listing = msgspec.json.decode(body, type=_Listing) if len(body) <= MAX_LIST else None
    except (msgspec.MsgspecError, ValueError):
        listing = None
    return None if listing is None else [entry.id for entry in listing.data or () if entry.id.strip()]


def _built_in(name: str, service: Service) -> Offer:
    from latchstep.model.catalog import model

    example = f"{name}:{service.default}"
    try:
        model(example)
    except DefinitionError as error:
        return Offer(name, False, str(error), example)
    return Offer(name, True, "installed; it shows that everything runs, and is too small for work", example)
