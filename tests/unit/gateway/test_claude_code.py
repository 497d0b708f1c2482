"""The words of errors that Claude Code acts on, for what services write; other errors stay as they are."""

from __future__ import annotations

import pytest

from dragoman.errors import Fault
from dragoman.gateway.claude_code import fault_for_claude_code

REFUSALS = {
    "effort_unsupported": [
        "output_config: Extra inputs are not permitted",
        "output_config.effort: Extra inputs are not permitted",
        "This model does not support the effort parameter.",
        "Unsupported parameter: 'reasoning_effort' is not supported with this model.",
        "Unknown parameter: 'reasoning.effort'.",
    ],
    "structured_outputs_unsupported": ["output_config.format: Extra inputs are not permitted"],
    "thinking_type:adaptive": [
        "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags: 'disabled', 'enabled'",
        "adaptive thinking is not supported on this model",
    ],
    "document_block": [
        "the target does not accept document (application/pdf) given as base64",
        "This model doesn't support documents.",
        "PDF input is not supported by this model",
    ],
    "image_block": [
        "the target does not accept image (image/png) given as base64",
        "This model doesn't support the image content block that you provided.",
        "No endpoints found that support image input",
        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        "vendor/model is not a multimodal model",
        "At most 0 image(s) may be provided in one request.",
        "messages[1].content[1]: unknown variant `image_url`, expected `text`",
    ],
}
OTHERS = [
    "messages: at least one message is required",
    "messages.1.role: Input should be 'user' or 'assistant'",
    "max_tokens: must be greater than thinking.budget_tokens",
    "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
    "prompt is too long: 200001 tokens > 200000 maximum",
    "thinking.type 'enabled' needs a budget; use 'adaptive' instead",
    "tools.0.custom.defer_loading: Extra inputs are not permitted",
]


def fault(message: str, status: int = 400) -> Fault:
    return Fault("invalid", message, status, code="invalid_request_error")


@pytest.mark.parametrize(("name", "message"), [(name, each) for name, all_ in REFUSALS.items() for each in all_])
def test_a_refused_feature_is_named_by_its_class(name: str, message: str) -> None:
    shown = fault_for_claude_code(fault(message))
    assert (shown.message, shown.status) == (f"capability_rejected: {name}", 400)


@pytest.mark.parametrize("message", OTHERS)
def test_other_messages_stay(message: str) -> None:
    assert fault_for_claude_code(fault(message)) == fault(message)


def test_errors_that_are_no_refusal_stay() -> None:
    for other in (Fault("server", "images are not supported", 500), Fault("context_full", "image not supported", 400)):
        assert fault_for_claude_code(other) == other


def test_the_word_at_which_it_hides_the_message_is_left_out() -> None:
    refused = Fault("auth", "the upstream one refused this gateway's credential: invalid x-api-key", 401)
    shown = fault_for_claude_code(refused)
    assert (shown.kind, shown.status) == ("auth", 401)
    assert shown.message == "the upstream one refused this gateway's credential: invalid API key"
