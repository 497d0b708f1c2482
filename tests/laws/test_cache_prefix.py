"""A later turn of a conversation keeps the prefix that upstreams have cached.

The law: render a conversation, and the same conversation one turn later, with the same settings. With cache marks
removed, every element of the first history stands at the same place in the second one, and all else (path, headers,
tools, system text, settings) is equal. The history is the last field, so the first body, up to its end, is a prefix of
the second one.

Excepted are: Kiro's current message, which carries the tools until it becomes history; tools that were not offered and
the new turn calls all the same (they are declared after the others); and thinking, in the one turn that shows that
the client does not give it back.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.filters.limits import has_unopened_loop
from dragoman.model.blocks import Block, CacheBreakpoint, Media, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Thinking, ToolChoice, ToolSpec, to_canonical
from dragoman.translate import Plan, configure_dialect, plan
from dragoman.wire import jsonio
from tests import strategies

CLIENTS = ("anthropic", "openai", "responses", "bedrock", "kiro", "gemini", "ollama")
MARKS = ("cache_control", "prompt_cache_breakpoint")
HISTORY = {"responses": "input", "gemini": "contents"}  # in all others `messages`; Kiro has two fields

# By name: the dialect, its settings, and the model, where they change what is rendered.
TARGETS: dict[str, tuple[str, dict[str, object], str]] = {
    "anthropic": ("anthropic", {}, "claude-x"),
    "anthropic compatible": ("anthropic", {"signed_thinking": False}, "kimi-k2"),
    "openai": ("openai", {}, "gpt-x"),
    "openai strict": ("openai", {"custom_tools": False, "max_tokens_field": "max_tokens"}, "kimi-k2"),
    "openai breakpoints": ("openai", {"cache_marks": "on", "cache_long": True}, "gpt-x"),
    "openai cache_control": ("openai", {"cache_control": True}, "claude-x"),
    "responses": ("responses", {}, "gpt-x"),
    "responses breakpoints": ("responses", {"cache_marks": "on"}, "gpt-x"),
    "bedrock claude": ("bedrock", {}, "anthropic.claude-x"),
    "bedrock nova": ("bedrock", {}, "amazon.nova-pro"),
    "bedrock mistral": ("bedrock", {}, "mistral.large"),
    "bedrock.invoke": ("bedrock.invoke", {}, "anthropic.claude-x"),
    "gemini 2": ("gemini", {}, "gemini-2.5-pro"),
    "gemini 3": ("gemini", {}, "gemini-3-pro"),
    "ollama": ("ollama", {"num_ctx": 32768}, "qwen3"),
    "kiro tags": ("kiro", {}, "claude-sonnet-4.5"),
    "kiro fields": ("kiro", {}, "claude-opus-4.8"),
    "kiro merge": ("kiro", {"pairing": "merge", "long_descriptions": "cut"}, "claude-sonnet-4.5"),
    "kiro few tools": ("kiro", {"max_tools": 2}, "claude-sonnet-4.5"),
}
every_target = pytest.mark.parametrize("target", TARGETS)
every_client = pytest.mark.parametrize("client", CLIENTS)


def target_of(name: str) -> tuple[Dialect, str]:
    dialect, settings, model = TARGETS[name]
    return configure_dialect(registry.get(dialect), settings), model


def planned(client: Dialect, upstream: Dialect, model: str, conversation: Conversation) -> Plan | None:
    """The plan; None where the target's own refusal is the response."""
    try:
        return plan(client, upstream, conversation, model=model)
    except DragomanError:
        return None


class Rendered:
    """A request as it is sent, without cache marks: its history, and all the rest."""

    def __init__(self, translation_plan: Plan) -> None:
        request = translation_plan.request()
        self.raw = request.body
        body: Any = _unmarked(jsonio.decode(request.body))
        self.fields = list(body)
        self.current: Any = None
        self.history: list[Any]
        if translation_plan.upstream.name == "kiro":
            self.history, self.current, self.tools = _kiro_history(body)
        else:
            name = HISTORY.get(translation_plan.upstream.name, "messages")
            self.history = body.pop(name)
            self.tools = _take_tools(body)
        head = [each for each in request.headers if each[0] != "content-length"]
        self.rest = (request.method, request.path, request.query, head, body)


def _kiro_history(body: Any) -> tuple[list[Any], Any, Any]:
    state = body["conversationState"]
    current = state.pop("currentMessage")
    context = current["userInputMessage"].get("userInputMessageContext", {})
    tools = context.pop("tools", [])
    if not context:
        current["userInputMessage"].pop("userInputMessageContext", None)
    return state.pop("history", []), current, tools


def _take_tools(body: Any) -> list[Any]:
    config = body.get("toolConfig")
    if config is not None:
        tools: list[Any] = config.pop("tools", [])
        return tools
    tools = body.pop("tools", [])
    if tools and isinstance(tools[0], dict) and "functionDeclarations" in tools[0]:
        return [tools, *tools[0].pop("functionDeclarations")]
    return tools


def _unmarked(value: Any) -> Any:
    """JSON without cache marks, and with one spelling for content that is one text."""
    if isinstance(value, list):
        items = [_unmarked(each) for each in value if not (isinstance(each, dict) and each.keys() == {"cachePoint"})]
        return items[0]["text"] if len(items) == 1 and _is_text(items[0]) else items
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name not in MARKS}
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"type", "text"} and value["type"] in ("text", "input_text")


def hold(client: Dialect, target: str, earlier: Conversation, later: Conversation) -> bool:
    """Whether the law had something to say; raises AssertionError where it does not hold."""
    upstream, model = target_of(target)
    short, long = planned(client, upstream, model, earlier), planned(client, upstream, model, later)
    if short is None or long is None:
        return False
    first, second = Rendered(short), Rendered(long)
    before = [*first.history, *([first.current] if first.current else [])]
    after = [*second.history, *([second.current] if second.current else [])]
    last = len(before) - 1
    assert after[:last] == before[:last]
    assert after[last] == before[last] or (_is_blank_reply(earlier, later) and _goes_on(before[last], after[last]))
    if _notes_that_thinking_does_not_return(short, long):
        return True
    assert second.tools[: len(first.tools)] == first.tools
    if len(first.tools) != len(second.tools):
        assert _new_calls(short, long) - {tool.name for tool in short.translated.tools if isinstance(tool, ToolSpec)}
        return True
    assert second.rest == first.rest
    assert first.fields == second.fields
    assert first.fields[-1] == _last_field(upstream)
    return True


def _is_blank_reply(earlier: Conversation, later: Conversation) -> bool:
    """Whether the model answered with nothing: where no such turn is taken, the next question joins the last."""
    response = later.messages[len(earlier.messages)]
    is_blank = all(isinstance(block, Text) and not block.text.strip() for block in response.blocks)
    return is_blank or response.role != "assistant"  # the client's own dialect may leave it out


def _goes_on(before: Any, after: Any) -> bool:
    """Whether the later value is the same, or has more after what it had."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_goes_on(each, after[name]) for name, each in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) <= len(after) and all(map(_goes_on, before, after))
    return after.startswith(before) if isinstance(before, str) and isinstance(after, str) else bool(before == after)


def _last_field(upstream: Dialect) -> str:
    return "conversationState" if upstream.name == "kiro" else HISTORY.get(upstream.name, "messages")


def _new_calls(short: Plan, long: Plan) -> set[str]:
    new = long.translated.messages[len(short.translated.messages) - 1 :]
    return {block.name for message in new for block in message.blocks if isinstance(block, ToolCall)}


def _notes_that_thinking_does_not_return(short: Plan, long: Plan) -> bool:
    """Whether the new turn is the first that calls tools without the thinking that led to it."""
    return has_unopened_loop(long.translated) and not has_unopened_loop(short.translated)


# --- conversations as agents have them


def _text(text: str, mark: bool = False) -> Text:
    return Text(text, CacheBreakpoint() if mark else None)


def _user(*blocks: Block) -> Message:
    return Message("user", blocks)


def _assistant(*blocks: Block) -> Message:
    return Message("assistant", blocks)


def _call(id_: str, name: str = "read", arguments: str = '{"path":"a"}', **more: Any) -> ToolCall:
    return ToolCall(id_, name, arguments, **more)


def _result(id_: str, *content: Any, error: bool = False) -> ToolResult:
    return ToolResult(id_, content or (Text("done"),), error)


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = Media("image", "image/png", "base64", PNG)
SIGNED = Reasoning("hm", "anthropic", Signature("anthropic", "c2VhbGVk"))
REASONED = {
    "anthropic": SIGNED,
    "openai": Reasoning("hm", "openai"),
    "responses": Reasoning("hm", "responses", Signature("responses", "abc", "encrypted")),
    "kiro": Reasoning("hm", "kiro", Signature("kiro", "abc")),
}
SYSTEM = Message("system", (Text("remember the rules"),))

# Each is a response of the model and what the user says next.
EXCHANGES: dict[str, tuple[Message, ...]] = {
    "text": (_assistant(Text("yes")), _user(Text("go on"))),
    "marked text": (_assistant(_text("yes", mark=True)), _user(_text("go on", mark=True))),
    "empty reply": (_assistant(), _user(Text("well?"))),
    "blank texts": (_assistant(Text(" ")), _user(Text("\n"), Text("x"))),
    "two replies": (_assistant(Text("one")), _assistant(Text("two ")), _user(Text("go on"))),
    "two questions": (_assistant(Text("yes")), _user(Text("a")), _user(Text("b"))),
    "image": (_assistant(Text("show me")), _user(Text("here"), IMAGE)),
    "call": (_assistant(_call("call_1")), _user(_result("call_1"))),
    "call with words": (_assistant(Text("let me see"), _call("call_2")), _user(_result("call_2"), Text("and hurry"))),
    "thought, then call": (_assistant(SIGNED, _call("call_3")), _user(_result("call_3"))),
    "loop": (
        _assistant(SIGNED, _call("call_4")),
        _user(_result("call_4")),
        _assistant(_call("call_5", "write")),
        _user(_result("call_5")),
    ),
    "parallel": (
        _assistant(_call("call_6"), _call("call_7", "write")),
        _user(_result("call_6", Text("ok"), IMAGE), _result("call_7", error=True)),
    ),
    "results apart": (
        _assistant(_call("call_8"), _call("call_9")),
        _user(_result("call_9")),
        _user(_result("call_8", IMAGE)),
        _user(Text("now")),
    ),
    "reused id": (_assistant(_call("call_1", "write")), _user(_result("call_1", Text("again")))),
    "same id twice": (_assistant(_call("call_x"), _call("call_x")), _user(_result("call_x"), _result("call_x"))),
    "illegal ids": (
        _assistant(_call("functions.read:0"), _call("naïve id"), _call("i" * 80)),
        _user(_result("functions.read:0"), _result("naïve id"), _result("i" * 80)),
    ),
    "illegal name": (_assistant(_call("call_10", "files.read all")), _user(_result("call_10"))),
    "unknown tool": (_assistant(_call("call_11", "ghost")), _user(_result("call_11"))),
    "another unknown tool": (_assistant(_call("call_12", "apparition")), _user(_result("call_12"))),
    "web search": (_assistant(_call("call_13", "web_search")), _user(_result("call_13"))),
    "free text": (_assistant(_call("call_14", "patch", "*** Begin", form="text")), _user(_result("call_14"))),
    "no JSON": (_assistant(_call("call_15", arguments="{broken")), _user(_result("call_15"))),
    "missing result": (_assistant(_call("call_16")), _user(Text("never mind"))),
    "orphan result": (_assistant(Text("yes")), _user(_result("nobody"), Text("look"))),
    "empty result": (_assistant(_call("call_17")), _user(ToolResult("call_17"))),
    "system after results": (_assistant(_call("call_18")), _user(_result("call_18")), SYSTEM),
    "system before a question": (_assistant(Text("yes")), SYSTEM, _user(Text("go on"))),
    "system alone": (_assistant(Text("yes")), SYSTEM),
    "system between call and result": (_assistant(_call("call_19")), SYSTEM, _user(_result("call_19"))),
    "reply after its calls": (_assistant(_call("call_20")), _assistant(Text("I read it")), _user(_result("call_20"))),
    "signed call": (_assistant(_call("call_21", signature=Signature("gemini", "c2VhbA=="))), _user(_result("call_21"))),
    "document": (
        _assistant(Text("send it")),
        _user(Media("document", "application/pdf", "base64", PNG, "a report.pdf"), Text("there")),
    ),
    **{
        f"thought of {family}": (_assistant(thought, _call(f"call_{family}")), _user(_result(f"call_{family}")))
        for family, thought in REASONED.items()
    },
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
READ, WRITE = ToolSpec("read", "Reads.", SCHEMA), ToolSpec("write", "", SCHEMA, CacheBreakpoint())
TOOLS: tuple[tuple[ToolSpec, ...], ...] = (
    (),
    (READ, WRITE),
    (READ, WRITE, ToolSpec("files.read all", "x" * 12_000, SCHEMA), ToolSpec("web_search", "Searches.", SCHEMA)),
    (ToolSpec("patch", "Patches."), ToolSpec("a", "A", SCHEMA), ToolSpec("b", "B", SCHEMA), WRITE, READ),
)
THINKING = (
    Thinking(),
    Thinking("off"),
    Thinking("on", budget=2048),
    Thinking("on"),
    Thinking("adaptive"),
    Thinking("adaptive", "high"),
    Thinking(effort="low"),
)
CHOICES = (ToolChoice(), ToolChoice("any"), ToolChoice("none"), ToolChoice("auto", parallel=False))
OPENINGS: tuple[tuple[Message, ...], ...] = (
    (_user(Text("hello")),),
    (_user(_text("hello", mark=True), IMAGE),),
    (_user(Text("hello")), SYSTEM),
    (_assistant(Text("Welcome.")), _user(Text("hello"))),
    (_user(_result("call_0", Text("from before"))),),
)


@st.composite
def agents(draw: st.DrawFn) -> tuple[Conversation, Conversation]:
    """A conversation of an agent, and the same one exchange later."""
    names = draw(st.lists(st.sampled_from(sorted(EXCHANGES)), max_size=3))
    more = EXCHANGES[draw(st.sampled_from(sorted(EXCHANGES)))]
    tools = draw(st.sampled_from(TOOLS))
    conversation = Conversation(
        "model",
        (*draw(st.sampled_from(OPENINGS)), *[message for name in names for message in EXCHANGES[name]]),
        draw(st.sampled_from(((), (_text("Be brief.", mark=True),), (Text("Be brief."), Text("Be kind."))))),
        tools,
        draw(st.sampled_from(CHOICES)) if tools else ToolChoice(),
        thinking=draw(st.sampled_from(THINKING)),
        max_tokens=draw(st.sampled_from((None, 64, 8000))),
        stream=draw(st.booleans()),
        user=draw(st.sampled_from(("", "user-1"))),
    )
    return _placed(conversation), _placed(structs.replace(conversation, messages=(*conversation.messages, *more)))


@given(client=st.sampled_from(CLIENTS).map(registry.get), pair=agents())
def test_the_bytes_are_a_prefix(client: Dialect, pair: Pair) -> None:
    """Without marks, what is sent begins with what was sent before, up to the end of the history."""
    earlier, later = map(_without_marks, pair)
    for target in TARGETS:
        note(target)
        _bytes_are_a_prefix(target, client, earlier, later)


def _bytes_are_a_prefix(target: str, client: Dialect, earlier: Conversation, later: Conversation) -> None:
    upstream, model = target_of(target)
    short, long = planned(client, upstream, model, earlier), planned(client, upstream, model, later)
    if (
        short is None
        or long is None
        or short.translated.tools != long.translated.tools
        or short.translated.thinking != long.translated.thinking
    ):
        return  # the law above covers when these may differ
    first, second = short.request().body, long.request().body
    if upstream.name == "kiro":  # the current message becomes history, and leaves its tools
        first = first[: first.index(b'"currentMessage":')].removesuffix(b"],").removesuffix(b'"history":[')
    else:
        first = first.removesuffix(b"]}")
    assert second.startswith(first)


def _without_marks(conversation: Conversation) -> Conversation:
    def bare(node: Any) -> Any:
        return node if isinstance(node, Reasoning) else structs.replace(node, cache=None)

    return structs.replace(
        conversation,
        system=tuple(map(bare, conversation.system)),
        tools=tuple(map(bare, conversation.tools)),
        messages=tuple(
            structs.replace(message, blocks=tuple(map(bare, message.blocks))) for message in conversation.messages
        ),
    )


def _placed(conversation: Conversation) -> Conversation:
    return strategies.with_paths(to_canonical(conversation))


conversations = st.one_of(agents(), agents(), agents(), strategies.continued_conversations())
Pair: TypeAlias = tuple[Conversation, Conversation]


@given(client=st.sampled_from(CLIENTS).map(registry.get), pair=conversations)
def test_the_prefix_holds(client: Dialect, pair: Pair) -> None:
    for target in TARGETS:
        note(target)
        hold(client, target, *pair)


@given(target=st.sampled_from(sorted(TARGETS)), pair=conversations)
def test_the_prefix_holds_for_what_a_client_can_say(target: str, pair: Pair) -> None:
    """The same through the client's own wire form, so that its reader, and the ids it makes up, are part of the law."""
    for client in CLIENTS:
        note(client)
        dialect = registry.get(client)
        earlier, later = [_written_by(dialect, each) for each in pair]
        if earlier is not None and later is not None and _asks_alike(earlier, later):
            hold(dialect, target, earlier, later)


def _asks_alike(earlier: Conversation, later: Conversation) -> bool:
    """Whether the client says all but its messages as before: what it changes itself is its own."""
    return structs.replace(earlier, messages=()) == structs.replace(later, messages=())


def _written_by(client: Dialect, conversation: Conversation) -> Conversation | None:
    translation_plan = planned(client, client, conversation.model, conversation)
    if translation_plan is None:
        return None
    call = client.binding.match(client.binding.wrap(translation_plan.call()))
    assert call is not None
    return client.codec.parse_request(call)


@every_target
@every_client
def test_the_law_is_about_most_conversations(client: str, target: str) -> None:
    """A law that is only tried on what targets refuse holds for nothing."""
    tried = [
        hold(registry.get(client), target, *_one_exchange(name)) for name in sorted(EXCHANGES) if "image" not in name
    ]
    assert tried.count(True) > len(tried) * 2 // 3


def _one_exchange(name: str) -> Pair:
    conversation = Conversation("model", OPENINGS[0], (Text("Be brief."),), TOOLS[1])
    return _placed(conversation), _placed(
        structs.replace(conversation, messages=(*conversation.messages, *EXCHANGES[name]))
    )


@every_target
@every_client
def test_a_tool_that_joins_at_the_end_leaves_all_before_it_as_it_was(client: str, target: str) -> None:
    """Aliases and schemas depend on the tool alone, not on the others."""
    upstream, model = target_of(target)
    conversation = Conversation("model", OPENINGS[0], (Text("Be brief."),), TOOLS[1])
    more = structs.replace(conversation, tools=(*TOOLS[1], ToolSpec("files.read all", "Reads all.", SCHEMA)))
    first, second = (plan(registry.get(client), upstream, each, model=model) for each in (conversation, more))
    before, after = Rendered(first), Rendered(second)
    assert after.tools[: len(before.tools)] == before.tools
    if target != "kiro few tools":  # there the third is left out, and the system text says so
        assert (after.history, after.current, after.rest) == (before.history, before.current, before.rest)
