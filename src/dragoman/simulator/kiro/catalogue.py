"""The models, the profile and the usage of the simulated Kiro service (docs/dialects/kiro.md#models). Pure data."""

from __future__ import annotations

from dragoman.dialects.kiro.models import CLAUDE_EFFORTS, GPT_EFFORTS, MODEL_NAMES, find_model
from dragoman.wire.jsonio import Json

PROFILE_ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/SIMULATED001"
DEFAULT_MODEL = "claude-sonnet-4.5"


# Accepted, but not listed.
_HIDDEN = (
    "claude-fable-5",
    "CLAUDE_SONNET_4_5_20250929_V1_0",
    "CLAUDE_SONNET_4_20250514_V1_0",
    "CLAUDE_3_7_SONNET_20250219_V1_0",
)
MODELS = frozenset({*MODEL_NAMES, *_HIDDEN})

# The schemas of additionalModelRequestFields.
_EFFORTS: dict[str, Json] = {
    "claude": {
        "type": "object",
        "properties": {
            "output_config": {
                "type": "object",
                "properties": {"effort": {"type": "string", "enum": [*CLAUDE_EFFORTS]}},
            },
            "thinking": {"type": "object", "properties": {"type": {"type": "string"}, "display": {"type": "string"}}},
        },
    },
    "gpt": {
        "type": "object",
        "properties": {
            "reasoning": {
                "type": "object",
                "properties": {"effort": {"type": "string", "enum": [*GPT_EFFORTS]}},
            }
        },
    },
}


def list_models() -> Json:
    """Return the response of ListAvailableModels."""
    models: list[Json] = [_model_entry(name) for name in MODEL_NAMES if name not in _HIDDEN]
    return {"models": models, "defaultModel": {"modelId": DEFAULT_MODEL}, "nextToken": None}


def _model_entry(name: str) -> Json:
    model = find_model(name)
    entry: dict[str, Json] = {
        "modelId": name,
        "modelName": name,
        "description": f"The simulated {name}",
        "rateMultiplier": 1.0,
        "rateUnit": "Credit",
        "tokenLimits": {"maxInputTokens": model.window, "maxOutputTokens": 64_000},
        "supportedInputTypes": ["TEXT", "IMAGE"] if model.images else ["TEXT"],
        "promptCaching": {"supportsPromptCaching": model.images},
    }
    if model.thinking_style in _EFFORTS:
        entry["additionalModelRequestFieldsSchema"] = _EFFORTS[model.thinking_style]
    return entry


def list_profiles() -> Json:
    """Return the response of ListAvailableProfiles."""
    return {"profiles": [{"arn": PROFILE_ARN, "profileName": "simulated"}]}


def usage_limits(used: int, resource: str) -> Json:
    """Return the response of GetUsageLimits."""
    breakdown: dict[str, Json] = {
        "resourceType": resource,
        "currentUsage": used,
        "currentUsageWithPrecision": float(used),
        "usageLimit": 1000,
        "usageLimitWithPrecision": 1000.0,
        "unit": "INVOCATIONS",
    }
    return {
        "limits": [],
        "nextDateReset": 1893456000.0,
        "daysUntilReset": 30,
        "usageBreakdownList": [breakdown],
        "subscriptionInfo": {"subscriptionTitle": "SIMULATED", "type": "Q_DEVELOPER_STANDALONE_FREE"},
        "overageConfiguration": {"overageStatus": "DISABLED"},
        "userInfo": {"userId": "simulated-user", "email": None},
    }
