"""The inventory of all routes. A new route must be added here, after deciding which clients may use it."""

from __future__ import annotations

from typing import Any

MESSAGES = [{"role": "user", "content": "hello"}]
CLAUDE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": MESSAGES}
CHAT: dict[str, Any] = {"model": "m", "messages": MESSAGES}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hello"}
GEMINI: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
BEDROCK: dict[str, Any] = {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}
INVOKE: dict[str, Any] = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": MESSAGES}
KIRO: dict[str, Any] = {
    "conversationState": {
        "conversationId": "c",
        "chatTriggerType": "MANUAL",
        "currentMessage": {"userInputMessage": {"content": "hello", "modelId": "m", "origin": "AI_EDITOR"}},
    }
}
# Routes of the data plane that need the key: method, path, a valid body.
# Without a key: probes of operators, and of clients that want to know whether the address answers.
OPEN = [(method, path) for path in ("/healthz", "/readyz", "/", "/api/hello") for method in ("GET", "HEAD")]
DATA: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/messages", CLAUDE),
    ("POST", "/messages", CLAUDE),  # for clients whose base URL should include the version
    ("POST", "/messages/count_tokens", CLAUDE),
    ("POST", "/v1/messages/count_tokens", CLAUDE),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/responses", RESPONSES),
    ("POST", "/v1/responses/input_tokens", RESPONSES),
    ("POST", "/v1beta/models/m:generateContent", GEMINI),
    ("POST", "/v1beta/models/m:streamGenerateContent", GEMINI),
    ("POST", "/v1beta/models/m:countTokens", GEMINI),
    ("POST", "/model/m/converse", BEDROCK),
    ("POST", "/model/m/converse-stream", BEDROCK),
    ("POST", "/model/m/count-tokens", {"input": {"converse": BEDROCK}}),
    ("POST", "/model/m/invoke", INVOKE),
    ("POST", "/model/m/invoke-with-response-stream", INVOKE),
    ("POST", "/generateAssistantResponse", KIRO),
    ("POST", "/api/chat", CHAT),
    ("GET", "/api/tags", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/m", None),
    ("GET", "/v1beta/models", None),
    ("GET", "/v1beta/models/m", None),
    ("GET", "/ListAvailableModels", None),
]
# Requests about a response stored upstream: served for the key that created it, a 404 for all others.
STORED = [
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items"),
]
# The admin plane: a Unix socket, or a read-only loopback port.
ADMIN = {
    ("GET", "/status"),
    ("GET", "/metrics"),
    ("GET", "/cooldowns"),
    ("GET", "/healthz"),
    ("GET", "/log"),
    ("GET", "/requests"),
    ("GET", "/activity"),
    ("GET", "/models"),
    ("POST", "/cooldowns/clear"),
    ("POST", "/reload"),
    ("POST", "/recording?level=off"),
    ("POST", "/recordings/purge"),
}
# Routes that other gateways have and were attacked by: keys, connection tests, templates, documentation, files, panels.
ABSENT = [
    "/admin",
    "/status",
    "/metrics",
    "/cooldowns",
    "/cooldowns/clear",
    "/log",
    "/requests",
    "/activity",
    "/reload",
    "/config",
    "/config/update",
    "/key/generate",
    "/key/info",
    "/user/new",
    "/prompts/test",
    "/mcp-rest/test/connection",
    "/mcp-rest/test/tools/list",
    "/mcp",
    "/test",
    "/health/test_connection",
    "/guardrails/apply_guardrail",
    "/openapi.json",
    "/docs",
    "/ui",
    "/debug",
    "/debug/pprof",
    "/explain",
    "/reload",
    "/shutdown",
    "/proxy",
    "/fetch",
    "/pass-through/x",
    "/v1/files",
    "/v1/batches",
    "/v1/assistants",
    "/v1/images/generations",
    "/v1/audio/transcriptions",
    "/v1/embeddings",
    "/v1/fine_tuning/jobs",
    "/.env",
    "/..%2f..%2fetc/passwd",
    "/static/../../etc/passwd",
]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
