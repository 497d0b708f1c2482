"""Filters of settings: thinking, sampling, and every other setting that a target limits.

`FitLimits` applies the functions of `_FITS` in order; each takes the conversation and returns it within one limit of
the target. `FitThinkingBudget` adds the rules that Claude has for thinking on every service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import structs

from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Opaque, Reasoning, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Output, Thinking, ToolChoice, ToolSpec, tool_name
from dragoman.model.filter import Action, Facts, Features, Filter, MakeResponseFilter, Notes
from dragoman.wire.jsonio import Json

SCALE = ("minimal", "low", "medium", "high", "xhigh", "max")  # the efforts of all dialects, lowest first
_BUDGETS = (
    (4_096, "low"),
    (16_384, "medium"),
    (65_536, "high"),
)  # the greatest budget in tokens, and the effort for it; our own convention


def fit_thinking(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    """Return the conversation with the thinking settings that the target has, and a note of the change."""
    requested = conversation.thinking
    fitted = _fit_to(requested, target)
    if fitted == requested:
        return conversation
    if fitted == Thinking() and not target.efforts:
        notes.dropped(
            "thinking.dropped", "thinking", f"the target has no setting for thinking ({_describe(requested)})"
        )
    else:
        lost = fitted == Thinking() or (requested.show is not None and fitted.show is None)
        detail = f"requested: {_describe(requested)}; sent: {_describe(fitted)}"
        notes.add("thinking.fitted", "dropped" if lost else "changed", "thinking", detail)
    return structs.replace(conversation, thinking=fitted)


def _fit_to(requested: Thinking, target: Capabilities) -> Thinking:
    effort, budget, mode, show = requested.effort, requested.budget, requested.mode, requested.show
    if budget is not None and "budgets" not in target.traits:
        effort = effort or next((name for limit, name in _BUDGETS if budget <= limit), "max")
        budget = None
    if effort and effort not in target.efforts:
        effort = _nearest(effort, target.efforts)
    if mode not in target.thinking:
        mode = "default"
    if mode == "off":
        effort, budget = "", None
    return Thinking(mode, effort, budget, show if "thinking_show" in target.traits else None)


def _nearest(effort: str, efforts: tuple[str, ...]) -> str:
    """Return the highest effort of the target up to the requested one, else its lowest; "" for an unknown effort."""
    if effort not in SCALE or not efforts:
        return ""
    rank = SCALE.index(effort)
    below = [name for name in efforts if name in SCALE and SCALE.index(name) <= rank]
    return below[-1] if below else efforts[0]


def _describe(thinking: Thinking) -> str:
    words = [f"mode {thinking.mode}"] if thinking.mode != "default" else []
    words += [f"effort {thinking.effort}"] if thinking.effort else []
    words += [f"a budget of {thinking.budget} tokens"] if thinking.budget is not None else []
    words += [f"show {thinking.show}".lower()] if thinking.show is not None else []
    return ", ".join(words) or "its default"


# --- FitLimits


_FEATURES: Features = frozenset(
    {
        "choices",
        "sampling",
        "zero_length",
        "stops",
        "output",
        "thinking",
        "same_names",
        "chosen",
        "strict_tools",
        "user",
    }
)
_Fit: TypeAlias = Callable[[Conversation, Capabilities, Notes], Conversation]


class FitLimits(Filter):
    """Bring settings and counts within the target's limits.

    A setting that the target lacks is dropped with a note (docs/decisions/content.md#d9). Raises Unrepresentable if the
    target cannot send several choices or a reply of no tokens, and the request needs it.
    """

    name = "fit_limits"

    def __init__(self, upstream: Capabilities) -> None:
        self._target = upstream
        self.applies_to = _FEATURES if upstream.max_tokens is None else _FEATURES | {"no_length"}

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        for fit in _FITS:
            conversation = fit(conversation, self._target, notes)
        return conversation, None


def _choices(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    if conversation.choices > 1 and "choices" not in target.traits:
        raise Unrepresentable(f"the target sends one reply per request, not {conversation.choices}: set n to 1", at="n")
    return conversation


def _sampling(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    sampling = {name: value for name, value in conversation.sampling.items() if name in target.sampling}
    for name in sorted(conversation.sampling.keys() - sampling.keys()):
        notes.dropped("knob.dropped", name, f"the target has no setting {name}")
    for name, low, high in target.sampling_ranges:
        if name in sampling and not low <= sampling[name] <= high:
            clamped = min(max(sampling[name], low), high)
            notes.changed("knob.clamped", name, f"{sampling[name]} is outside {low:g} to {high:g}; {clamped:g} is sent")
            sampling[name] = clamped
    return conversation if sampling == conversation.sampling else structs.replace(conversation, sampling=sampling)


def _max_tokens(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    if conversation.max_tokens is None and target.max_tokens is not None:
        notes.added("max_tokens.default", "max_tokens", f"the target requires a limit; {target.max_tokens} is sent")
        return structs.replace(conversation, max_tokens=target.max_tokens)
    if conversation.max_tokens == 0 and "zero_tokens" not in target.traits:
        raise Unrepresentable("the target does not accept a limit of 0 tokens", at="max_tokens")
    return conversation


def _stops(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    stops = tuple(stop for stop in conversation.stop if stop and ("no_blank_text" not in target.traits or stop.strip()))
    if stops != conversation.stop:
        notes.dropped("stop.blank", "stop", "a blank stop sequence is left out: it has no effect")
    if target.stop_limit is not None and len(stops) > target.stop_limit:
        notes.dropped("stop.limit", "stop", f"the target accepts {target.stop_limit} stop sequences, not {len(stops)}")
        stops = stops[: target.stop_limit]
    return conversation if stops == conversation.stop else structs.replace(conversation, stop=stops)


def _output(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    output = conversation.output
    if output.kind not in target.output:
        kind = "json" if output.kind == "schema" and "json" in target.output else "text"
        notes.dropped("output.form", "output", f"the target cannot guarantee {output.kind} output; {kind} is requested")
        output = Output(kind)  # type: ignore[arg-type]
    if "output_names" not in target.traits and (output.name or output.strict is not None):
        notes.changed(
            "output.name", "output", "the target has no fields for the name and strict flag of an output schema"
        )
        output = structs.replace(output, name="", strict=None)
    if "closed_schemas" in target.traits and output.schema is not None:
        schema = _closed(output.schema)
        if schema != output.schema:
            notes.changed(
                "output.closed", "output", "the target requires additionalProperties: false in the schema's objects"
            )
            output = structs.replace(output, schema=schema)
    return conversation if output == conversation.output else structs.replace(conversation, output=output)


def _closed(schema: object) -> Json:
    """Return the schema with `additionalProperties: false` in every object."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema  # type: ignore[return-value]
    closed: dict[str, Json] = {
        name: {key: _closed(each) for key, each in value.items()}
        if name in _NAMED and isinstance(value, dict)
        else (value if name in _VALUES else _closed(value))
        for name, value in schema.items()
    }
    if schema.get("type") == "object" or "properties" in schema:
        closed["additionalProperties"] = False
    return closed


_NAMED = frozenset({"properties", "$defs", "definitions", "patternProperties"})  # their keys are names, not keywords
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})  # their values are no schemas


def _tool_choice(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    choice = conversation.tool_choice
    if choice == ToolChoice():
        return conversation
    if not conversation.tools:
        action: Action = "dropped" if choice.mode in ("any", "one") else "changed"
        notes.add("tools.choice", action, choice.at.path, "the request has no tools to choose from")
        return structs.replace(conversation, tool_choice=ToolChoice())
    tools = conversation.tools
    if choice.names and choice.mode in ("auto", "any") and "choice_names" not in target.traits:
        tools = tuple(tool for tool in tools if not isinstance(tool, ToolSpec) or tool.name in choice.names)
        notes.changed(
            "tools.allowed",
            choice.at.path,
            "the target cannot limit the tool choice; only the allowed tools are offered",
        )
        choice = structs.replace(choice, names=())
    if choice.mode not in target.choice_modes:
        notes.dropped("tools.choice", choice.at.path, f"the target has no tool choice {choice.mode!r}")
        choice = ToolChoice(parallel=choice.parallel, at=choice.at)
    if choice.parallel is not None and ("parallel_flag" not in target.traits or choice.mode == "none"):
        notes.dropped(
            "tools.parallel", choice.at.path, "the target has no setting for parallel calls with this tool choice"
        )
        choice = structs.replace(choice, parallel=None)
    if choice == conversation.tool_choice:
        return conversation
    return structs.replace(conversation, tool_choice=choice, tools=tools)


def _tool_names(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    """Keep the first of several tools with one name: no service accepts two.

    Where the target allows shared names, the names of its own server tools do not count.
    """
    names: set[str | None] = set()
    tools: list[ToolSpec | Opaque] = []
    for tool in conversation.tools:
        name = tool_name(tool) if "shared_names" not in target.traits or isinstance(tool, ToolSpec) else None
        if isinstance(tool, ToolSpec) and tool.waits_for == "block":
            name = None  # a block of the history defines it, not the tool list
        if name and name in names:
            notes.dropped("tools.duplicate", tool.at.path, f"an earlier tool has the name {name}; this one is left out")
            continue
        names.add(name)
        tools.append(tool)
    return conversation if len(tools) == len(conversation.tools) else structs.replace(conversation, tools=tuple(tools))


def _strict_tools(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    if "strict_tools" in target.traits or all(getattr(tool, "strict", None) is None for tool in conversation.tools):
        return conversation
    notes.dropped("tools.strict", "tools", "the target cannot force calls to match a tool's schema")
    tools = tuple(
        structs.replace(tool, strict=None) if isinstance(tool, ToolSpec) else tool for tool in conversation.tools
    )
    return structs.replace(conversation, tools=tools)


def _user(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    if "user" in target.traits or not conversation.user:
        return conversation
    notes.dropped("user.dropped", "user", "the target accepts no user id")
    return structs.replace(conversation, user="")


_FITS: tuple[_Fit, ...] = (
    _choices,
    _sampling,
    _max_tokens,
    _stops,
    _output,
    fit_thinking,
    _tool_names,
    _tool_choice,
    _strict_tools,
    _user,
)


# --- FitThinkingBudget


_DEFAULT_BUDGET = 4096
_MIN_TOP_P = 0.95


class FitThinkingBudget(Filter):
    """Bring thinking within Claude's rules: a budget within bounds, and no setting that thinking excludes.

    It is for targets with a minimum thinking budget, and runs after `FitLimits`.
    """

    name = "fit_thinking_budget"
    applies_to: Features = frozenset({"thinking"})

    def __init__(self, upstream: Capabilities) -> None:
        self._minimum = upstream.min_thinking_budget

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        thinking = _consistent(conversation.thinking, notes)
        if thinking is not conversation.thinking:
            conversation = structs.replace(conversation, thinking=thinking)
        if thinking.mode not in ("on", "adaptive"):
            return conversation, None
        reason = self._obstacle(conversation)
        if reason:
            notes.dropped("thinking.off", "thinking", f"thinking is turned off: {reason}")
            return structs.replace(conversation, thinking=Thinking("off")), None
        return _without_excluded_sampling(self._with_budget(conversation, notes), notes), None

    def _obstacle(self, conversation: Conversation) -> str:
        if conversation.tool_choice.mode in ("any", "one"):
            return "the target does not accept a forced tool choice with thinking"
        if conversation.thinking.mode == "adaptive":
            return ""
        if conversation.max_tokens is not None and conversation.max_tokens <= self._minimum:
            return f"the token limit leaves no room for the minimum budget of {self._minimum}"
        if has_unopened_loop(conversation):
            return "a reply in the history calls a tool and does not begin with thinking"
        return ""

    def _with_budget(self, conversation: Conversation, notes: Notes) -> Conversation:
        thinking, limit = conversation.thinking, conversation.max_tokens
        if thinking.mode != "on":
            return conversation
        default = _DEFAULT_BUDGET if limit is None else limit // 2
        budget = max(default if thinking.budget is None else thinking.budget, self._minimum)
        budget = budget if limit is None else min(budget, limit - 1)
        if budget == thinking.budget:
            return conversation
        requested_budget = "none" if thinking.budget is None else str(thinking.budget)
        detail = (
            f"{budget} is sent, not {requested_budget}: a budget must be at least {self._minimum} and below max_tokens"
        )
        notes.changed("thinking.budget", "thinking", detail)
        return structs.replace(conversation, thinking=structs.replace(thinking, budget=budget))


def _consistent(requested: Thinking, notes: Notes) -> Thinking:
    """Return settings that agree: a budget turns thinking on; without thinking there is no budget and no `show`."""
    thinking = requested
    if thinking.budget is not None and thinking.mode == "default":
        thinking = structs.replace(thinking, mode="on")
    if thinking.mode != "on" and thinking.budget is not None:
        thinking = structs.replace(thinking, budget=None)
    if thinking.mode not in ("on", "adaptive") and thinking.show is not None:
        thinking = structs.replace(thinking, show=None)
    if thinking != requested:
        detail = "a budget needs thinking to be on; showing thinking needs it to be on or adaptive"
        lost = (thinking.budget, thinking.show) != (requested.budget, requested.show)
        notes.add("thinking.words", "dropped" if lost else "changed", "thinking", detail)
    return thinking


def has_unopened_loop(conversation: Conversation) -> bool:
    """Return whether a tool loop of this history does not begin with thinking.

    A loop is one turn of Claude: the replies from one question to the next, with the tool results between them. Only
    its first reply must begin with thinking. Claude refuses thinking only if the last loop breaks this rule. All loops
    count here, so that thinking, once off, stays off: switching it invalidates the service's prompt cache.
    """
    opens_with_thinking: bool | None = None  # of the current loop; None: it has not begun
    for message in conversation.messages:
        if message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks):
            opens_with_thinking = None
        elif message.role == "assistant" and message.blocks:
            if opens_with_thinking is None:
                opens_with_thinking = isinstance(message.blocks[0], Reasoning)
            if not opens_with_thinking and any(isinstance(block, ToolCall) for block in message.blocks):
                return True
    return False


def _without_excluded_sampling(conversation: Conversation, notes: Notes) -> Conversation:
    sampling = {name: value for name, value in conversation.sampling.items() if not _excluded(name, value)}
    for name in sorted(conversation.sampling.keys() - sampling.keys()):
        notes.dropped("thinking.knob", name, f"the target does not accept this value of {name} with thinking")
    return (
        conversation
        if len(sampling) == len(conversation.sampling)
        else structs.replace(conversation, sampling=sampling)
    )


def _excluded(name: str, value: float) -> bool:
    return (name == "temperature" and value != 1) or name == "top_k" or (name == "top_p" and value < _MIN_TOP_P)
