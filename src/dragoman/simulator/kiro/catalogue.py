"""The models, profile and usage the simulated service knows (facts 1.8, 1.9)."""

from __future__ import annotations

from msgspec import Struct

from dragoman.wire.jsonio import Json

PROFILE_ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/SIMULATED001"
DEFAULT_MODEL = "claude-sonnet-4.5"


class Model(Struct, frozen=True):
    id: str
    window: int
    listed: bool = True
    images: bool = False
    efforts: str = ""  # what additionalModelRequestFields takes: "claude", "gpt" or nothing


_M = 1_000_000
MODELS: dict[str, Model] = {
    model.id: model
    for model in (
        Model("auto", 200_000, images=True),
        Model("claude-opus-5", _M, images=True, efforts="claude"),
        Model("claude-sonnet-5", _M, images=True, efforts="claude"),
        Model("claude-fable-5", _M, listed=False, images=True, efforts="claude"),
        Model("claude-opus-4.8", _M, images=True, efforts="claude"),
        Model("claude-opus-4.7", _M, images=True, efforts="claude"),
        Model("claude-opus-4.6", _M, images=True),
        Model("claude-opus-4.5", 200_000, images=True),
        Model("claude-sonnet-4.6", _M, images=True),
        Model("claude-sonnet-4.5", 200_000, images=True),
        Model("CLAUDE_SONNET_4_5_20250929_V1_0", 200_000, listed=False, images=True),
        Model("claude-sonnet-4", 200_000, images=True),
        Model("CLAUDE_SONNET_4_20250514_V1_0", 200_000, listed=False, images=True),
        Model("CLAUDE_3_7_SONNET_20250219_V1_0", 200_000, listed=False, images=True),
        Model("claude-haiku-4.5", 200_000, images=True),
        Model("gpt-5.6-sol", 272_000, efforts="gpt"),
        Model("gpt-5.6-terra", 272_000, efforts="gpt"),
        Model("gpt-5.6-luna", 272_000, efforts="gpt"),
        Model("deepseek-3.2", 128_000),
        Model("minimax-m2.5", 200_000),
        Model("minimax-m2.1", 200_000),
        Model("glm-5", 200_000),
        Model("qwen3-coder-next", 256_000),
    )
}

_EFFORTS: dict[str, Json] = {
    "claude": {
        "type": "object",
        "properties": {
            "output_config": {
                "type": "object",
                "properties": {"effort": {"type": "string", "enum": ["low", "medium", "high", "xhigh", "max"]}},
            },
            "thinking": {"type": "object", "properties": {"type": {"type": "string"}, "display": {"type": "string"}}},
        },
    },
    "gpt": {
        "type": "object",
        "properties": {
            "reasoning": {
                "type": "object",
                "properties": {"effort": {"type": "string", "enum": ["low", "medium", "high", "xhigh"]}},
            }
        },
    },
}


def window(model: str) -> int:
    """The context window of a model; of an unknown one, the usual."""
    known = MODELS.get(model)
    return known.window if known else 200_000


def list_models() -> Json:
    models: list[Json] = [_told(model) for model in MODELS.values() if model.listed]
    return {"models": models, "defaultModel": {"modelId": DEFAULT_MODEL}, "nextToken": None}


def _told(model: Model) -> Json:
    told: dict[str, Json] = {
        "modelId": model.id,
        "modelName": model.id,
        "description": f"The simulated {model.id}",
        "rateMultiplier": 1.0,
        "rateUnit": "Credit",
        "tokenLimits": {"maxInputTokens": model.window, "maxOutputTokens": 64_000},
        "supportedInputTypes": ["TEXT", "IMAGE"] if model.images else ["TEXT"],
        "promptCaching": {"supportsPromptCaching": model.images},
    }
    if model.efforts:
        told["additionalModelRequestFieldsSchema"] = _EFFORTS[model.efforts]
    return told


def list_profiles() -> Json:
    return {"profiles": [{"arn": PROFILE_ARN, "profileName": "simulated"}]}


def usage_limits(used: int, resource: str) -> Json:
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
