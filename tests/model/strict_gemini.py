"""A loopback Gemini server that is as strict as the real API, for tests. Scripts are those of `StrictChat`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any

from tests.model.strict_chat import Refused, Script, StrictChat, _no_constant, _refuse_if, _strict_strings

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
FIELDS = {
    "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent",
    "labels", "serviceTier",
}  # fmt: skip
CONFIG = {
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "thinkingConfig", "responseMimeType",
    "responseJsonSchema", "responseModalities",
}  # fmt: skip
DATA = {
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
}  # fmt: skip
BESIDE = {"thought", "thoughtSignature", "partMetadata"}
SIGNATURE = base64.b64encode(b"signed").decode()


def strict_gemini(scripts: Sequence[Script] = (), **options: Any) -> StrictChat:
    return StrictChat(scripts, check=refusal, **options)


def chunk(*parts: dict[str, Any], finish: str = "", **fields: Any) -> dict[str, Any]:
    """One event with parts, of candidate 0."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-x", "responseId": "r1", **fields}


def text_answer(text: str, finish: str = "STOP") -> list[Any]:
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    return [chunk({"text": text}), chunk({"text": ""}, finish=finish, usageMetadata=usage)]


def call(name: str, args: Any = None, id: str = "", signature: str = "") -> dict[str, Any]:
    """A part that calls."""
    made: dict[str, Any] = {"functionCall": {"name": name}}
    if args is not None:
        made["functionCall"]["args"] = args
    if id:
        made["functionCall"]["id"] = id
    return {**made, "thoughtSignature": signature} if signature else made


def call_answer(*calls: dict[str, Any]) -> list[Any]:
    return [chunk(*calls, finish="STOP")]


def refusal(body: bytes) -> str | None:
    """Why the API refuses this request body, None where it accepts it."""
    try:
        request = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        return f"Invalid JSON payload received: {error}"
    try:
        _strict_strings(request)
        _known(request, FIELDS, "the request")
        _known(request.get("generationConfig", {}), CONFIG, "generation_config")
        config = request.get("generationConfig", {})
        if "responseJsonSchema" in config:
            _refuse_if(config.get("responseMimeType") != "application/json", "response_json_schema needs the mime type")
            _refuse_if(not isinstance(config["responseJsonSchema"], dict), "response_json_schema is not an object")
        if "systemInstruction" in request:
            _parts(request["systemInstruction"], "system_instruction", {"text"})
        _tools(request.get("tools"))
        _refuse_if(not request.get("contents"), "contents is not specified")
        _contents(request["contents"])
    except Refused as why:
        return str(why)
    return None


def _known(value: Any, names: set[str], where: str) -> None:
    _refuse_if(not isinstance(value, dict), f"{where} is not an object")
    unknown = value.keys() - names
    _refuse_if(bool(unknown), f"Invalid JSON payload received. Unknown name {sorted(unknown)} at {where}")


def _tools(tools: Any) -> None:
    _refuse_if(tools is not None and not tools, "tools is empty")
    names: list[str] = []
    for tool in tools or ():
        for declared in tool.get("functionDeclarations", ()):
            _known(declared, {"name", "description", "parametersJsonSchema"}, "function_declarations")
            _refuse_if(not NAME.fullmatch(declared["name"]), f"Invalid function name {declared['name']!r}")
            _refuse_if(declared["parametersJsonSchema"].get("type") != "object", "parameters must be of type object")
            names.append(declared["name"])
    _refuse_if(len(set(names)) != len(names), "Duplicate function declaration")


def _contents(contents: list[Any]) -> None:
    before = ""
    waiting: list[dict[str, Any]] = []
    for at, content in enumerate(contents):
        where = f"contents[{at}]"
        _known(content, {"role", "parts"}, where)
        _refuse_if(content.get("role") not in ("user", "model"), "Please use a valid role: user, model.")
        _parts(content, where, DATA)
        parts, role = content["parts"], content["role"]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        _refuse_if(bool(answers) and role != "user", f"{where}: a response of the model")
        _refuse_if(
            len(answers) != len(waiting),
            "Please ensure that the number of function response parts is equal to the number of function call parts"
            f" of the function call turn. ({where})",
        )
        for asked, answer in zip(waiting, answers, strict=True):
            _refuse_if(asked["name"] != answer["name"], f"{where}: a response of {answer['name']!r}")
            _refuse_if(asked.get("id") != answer.get("id"), f"{where}: a response to {answer.get('id')!r}")
        if calls:
            _refuse_if(
                role != "model" or before != "user",
                "Please ensure that function call turn comes immediately after a user turn or after a function"
                f" response turn. ({where})",
            )
            signed = any("thoughtSignature" in part for part in parts)
            _refuse_if(not signed, f"Function call is missing a thought_signature in functionCall parts. ({where})")
        waiting, before = calls, role
    _refuse_if(bool(waiting), "no function response turn after the last function call turn")


def _parts(content: dict[str, Any], where: str, allowed: set[str]) -> None:
    parts = content.get("parts")
    _refuse_if(not isinstance(parts, list) or not parts, f"{where}.parts: contents.parts must not be empty.")
    for part in parts or ():
        _known(part, DATA | BESIDE, where)
        data = part.keys() & allowed
        _refuse_if(len(data) != 1, f"{where}.parts.data: required oneof field 'data' must have one initialized field")
        signature = part.get("thoughtSignature")
        if signature is not None:
            try:
                base64.b64decode(signature, altchars=b"-_" if set(signature) & set("-_") else None, validate=True)
            except ValueError:
                raise Refused("Invalid value at 'thought_signature' (TYPE_BYTES), Base64 decoding failed") from None
        if "text" in part:
            _refuse_if(not isinstance(part["text"], str), f"{where}: text is not text")
            _refuse_if(not part["text"].strip() and signature is None, f"{where}: a blank text")
        if "functionCall" in part:
            _function(part["functionCall"], {"id", "name", "args"}, "args", where)
        if "functionResponse" in part:
            _function(part["functionResponse"], {"id", "name", "response"}, "response", where)
        if "inlineData" in part:
            _known(part["inlineData"], {"mimeType", "data"}, where)
            base64.b64decode(part["inlineData"]["data"], validate=True)


def _function(function: Any, names: set[str], payload: str, where: str) -> None:
    _known(function, names, where)
    _refuse_if(not NAME.fullmatch(function.get("name", "")), f"{where}: illegal name {function.get('name')!r}")
    _refuse_if(not isinstance(function.get(payload), dict), f"{where}: {payload} is not an object")
    _refuse_if("id" in function and not function["id"], f"{where}: an empty id")
