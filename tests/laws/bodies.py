"""One rich request for each dialect: every field that other dialects share has a value other than its default."""

from __future__ import annotations

from typing import Any

MODEL = "claude-sonnet-4.5"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}, "required": ["city"]}

BODIES: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": MODEL,
        "max_tokens": 4000,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "The weather?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "Rain."}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "And this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                ],
            },
        ],
        "tools": [{"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "stop_sequences": ["STOP"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "metadata": {"user_id": "user-1"},
        "service_tier": "standard_only",
        "output_config": {"effort": "low"},
        "stream": True,
    },
    "openai": {
        "model": MODEL,
        "max_completion_tokens": 4000,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "The weather?", "name": "ann"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "And this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA, "strict": True},
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["STOP"],
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "seed": 7,
        "user": "user-1",
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "forecast", "schema": SCHEMA, "strict": True},
        },
        "logit_bias": {"1": 5},
        "logprobs": True,
        "metadata": {"team": "a"},
        "store": True,
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "verbosity": "low",
        "stream": True,
    },
    "responses": {
        "model": MODEL,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "The weather?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}], "phase": "commentary"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "And this?"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
                ],
            },
        ],
        "tools": [
            {"type": "function", "name": "weather", "description": "Tells.", "parameters": SCHEMA, "strict": True}
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 4000,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "format": {"type": "json_schema", "name": "forecast", "schema": SCHEMA, "strict": True},
            "verbosity": "low",
        },
        "user": "user-1",
        "metadata": {"team": "a"},
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "truncation": "auto",
        "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    },
    "bedrock": {
        "system": [{"text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"text": "The weather?"}]},
            {
                "role": "assistant",
                "content": [
                    {"text": "I look."},
                    {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Rome"}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "Rain."}], "status": "error"}},
                    {"text": "And this?"},
                    {"image": {"format": "png", "source": {"bytes": PIXEL}}},
                ],
            },
        ],
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "weather", "description": "Tells.", "inputSchema": {"json": SCHEMA}}}],
            "toolChoice": {"any": {}},
        },
        "inferenceConfig": {"maxTokens": 4000, "temperature": 0.5, "topP": 0.9, "stopSequences": ["STOP"]},
        "requestMetadata": {"user_id": "user-1"},
        "performanceConfig": {"latency": "optimized"},
        "additionalModelRequestFields": {"top_k": 40},
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "The weather?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "I look."},
                    {"functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Rome"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "call_1", "name": "weather", "response": {"output": "Rain."}}},
                    {"text": "And this?"},
                    {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
                ],
            },
        ],
        "tools": [
            {"functionDeclarations": [{"name": "weather", "description": "Tells.", "parametersJsonSchema": SCHEMA}]}
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "generationConfig": {
            "maxOutputTokens": 4000,
            "temperature": 0.5,
            "topP": 0.9,
            "topK": 40,
            "seed": 7,
            "presencePenalty": 0.5,
            "frequencyPenalty": 0.5,
            "stopSequences": ["STOP"],
            "responseMimeType": "application/json",
            "responseJsonSchema": SCHEMA,
            "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
        },
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    },
    "ollama": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "The weather?"},
            {
                "role": "assistant",
                "content": "I look.",
                "thinking": "Rome, then.",
                "tool_calls": [{"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            },
            {"role": "tool", "content": "Rain.", "tool_name": "weather", "tool_call_id": "call_1"},
            {"role": "user", "content": "And this?", "images": [PIXEL]},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA}}],
        "options": {
            "num_predict": 4000,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "seed": 7,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repeat_penalty": 1.1,
            "stop": ["STOP"],
            "num_ctx": 32768,
        },
        "format": SCHEMA,
        "think": "low",
        "keep_alive": "10m",
        "truncate": True,
    },
    "kiro": {
        "conversationState": {
            "chatTriggerType": "MANUAL",
            "conversationId": "8ce777cd-f671-5f21-befe-13c3b8c7bb15",
            "history": [
                {
                    "userInputMessage": {"content": "The weather?", "modelId": MODEL, "origin": "AI_EDITOR"},
                },
                {
                    "assistantResponseMessage": {
                        "content": "I look.",
                        "toolUses": [{"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Rome"}}],
                    }
                },
            ],
            "currentMessage": {
                "userInputMessage": {
                    "content": "And this?",
                    "modelId": MODEL,
                    "origin": "AI_EDITOR",
                    "images": [{"format": "png", "source": {"bytes": PIXEL}}],
                    "userInputMessageContext": {
                        "toolResults": [{"toolUseId": "tooluse_1", "content": [{"text": "Rain."}], "status": "error"}],
                        "tools": [
                            {
                                "toolSpecification": {
                                    "name": "weather",
                                    "description": "Tells.",
                                    "inputSchema": {"json": SCHEMA},
                                }
                            }
                        ],
                    },
                }
            },
        },
        "profileArn": "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABC",
    },
}


def strings(value: Any) -> set[str]:
    """All strings of a value, names of fields left out."""
    if isinstance(value, str):
        return {value}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for each in inner for text in strings(each)}


# What the bodies above leave out, since it excludes something of theirs.
MORE_BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "anthropic",
        {
            "model": MODEL,
            "max_tokens": 4000,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "source": {"type": "text", "media_type": "text/plain", "data": "A long tale."},
                            "title": "tale",
                            "context": "by night",
                            "citations": {"enabled": True},
                            "cache_control": {"type": "ephemeral"},
                        },
                        {"type": "text", "text": "Who is in it?"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]},
                {"role": "user", "content": [{"type": "text", "text": "Well?"}]},
            ],
            "thinking": {"type": "enabled", "budget_tokens": 1500, "display": "omitted"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "tools": [
                {
                    "name": "find",
                    "description": "Finds.",
                    "input_schema": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
                    "strict": True,
                },
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            ],
            "tool_choice": {"type": "none"},
            "container": "c_1",
        },
    ),
    (
        "openai",
        {
            "model": MODEL,
            "max_tokens": 4000,
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Search."},
                {"role": "assistant", "function_call": {"name": "find", "arguments": '{"city":"Rome"}'}},
                {"role": "function", "name": "find", "content": "Nothing."},
                {"role": "assistant", "content": "Hm.", "reasoning_content": "They want more."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Again."},
                        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}},
                    ],
                },
            ],
            "functions": [{"name": "find", "description": "Finds.", "parameters": SCHEMA}],
            "function_call": {"name": "find"},
            "response_format": {"type": "json_object"},
            "stop": "STOP",
        },
    ),
    (
        "responses",
        {
            "model": MODEL,
            "input": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Patch it."},
                {"type": "custom_tool_call", "call_id": "call_1", "name": "apply", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "call_1", "output": "Done."},
                {"role": "user", "content": [{"type": "input_text", "text": "More."}]},
            ],
            "tools": [
                {
                    "type": "custom",
                    "name": "apply",
                    "description": "Applies.",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
                },
                {"type": "web_search", "search_context_size": "low"},
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "custom", "name": "apply"}],
            },
            "include": ["message.output_text.logprobs"],
            "safety_identifier": "user-1",
        },
    ),
    (
        "bedrock",
        {
            "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"text": "Who is in it?"},
                        {"document": {"format": "txt", "name": "tale", "source": {"text": "A long tale."}}},
                        {"guardContent": {"text": {"text": "Careful.", "qualifiers": ["query"]}}},
                    ],
                }
            ],
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "find", "inputSchema": {"json": SCHEMA}, "strict": True}},
                    {"cachePoint": {"type": "default"}},
                ],
                "toolChoice": {"tool": {"name": "find"}},
            },
            "additionalModelRequestFields": {"thinking": {"type": "adaptive"}},
            "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        },
    ),
    (
        "gemini",
        {
            "contents": [
                {
                    "role": "user",
                    "parts": [
                        {"text": "Look."},
                        {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}},
                    ],
                }
            ],
            "tools": [
                {"functionDeclarations": [{"name": "find", "parameters": {"type": "OBJECT", "properties": {}}}]},
                {"googleSearch": {}},
            ],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["find"]}},
            "generationConfig": {"thinkingConfig": {"thinkingBudget": 2000}, "responseModalities": ["TEXT"]},
            "cachedContent": "cachedContents/1",
        },
    ),
    (
        "ollama",  # as clients that know no ids send it
        {
            "model": MODEL,
            "messages": [
                {"role": "user", "content": "Look."},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"function": {"name": "find", "arguments": {"what": "a"}}},
                        {"function": {"name": "read", "arguments": {"what": "b"}}},
                    ],
                },
                {"role": "tool", "content": "Read.", "tool_name": "read"},
                {"role": "tool", "content": "Nothing."},
            ],
            "tools": [{"type": "function", "function": {"name": "find"}}],
            "options": {"num_predict": -1, "num_keep": 4},
            "format": "json",
            "think": True,
            "logprobs": True,
        },
    ),
]
