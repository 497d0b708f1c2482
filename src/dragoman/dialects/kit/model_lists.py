"""Read the list of models that a service sends: JSON whose fields a `JsonModelList` describes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from msgspec import Struct

from dragoman.dialects.base import ApiRequest, ListedModel, ModelListPage
from dragoman.errors import MissingField
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_LONGEST_NAME = 256  # characters
_MAX_TOKENS = 10**9  # a larger figure is a mistake
_read_object = jsonio.optional_decoder(dict[str, jsonio.Raw])
_read_array = jsonio.optional_decoder(list[jsonio.Raw])


class JsonModelList(Struct, frozen=True):
    """A list of models as JSON: an array, in the field `items` of an object or alone, of objects.

    Fields of an entry are paths with dots; of several, the first that has a number counts.
    """

    items: str
    name: str
    window: tuple[str, ...] = ()
    max_output_tokens: tuple[str, ...] = ()
    prefix: str = ""  # of names; it is removed
    methods: str = ""  # a field with a list that must contain `generates`, for a service that lists other models too
    generates: str = ""
    next_page: str = ""  # the field of the next page's token
    has_more: str = ""  # a field that must be true for a next page

    def parse_page(self, body: bytes) -> ModelListPage:
        """See ModelListReader."""
        fields = _read_object(body)
        items = _read_array(body if fields is None else bytes(fields.get(self.items, b"")))
        if items is None:
            raise MissingField(f"expected a list of models in the field {self.items!r}", at=self.items)
        models: dict[str, ListedModel] = {}
        for model in self._models(items):
            models.setdefault(model.name, model)
        more = {} if fields is None else {name: jsonio.try_decode(bytes(raw)) for name, raw in _small(fields)}
        token = more.get(self.next_page)
        is_last = not isinstance(token, str) or (self.has_more and more.get(self.has_more) is not True)
        return ModelListPage(tuple(models.values()), "" if is_last else str(token))

    def _models(self, items: Sequence[jsonio.Raw]) -> Iterator[ListedModel]:
        for item in items:
            entry = jsonio.try_decode(bytes(item))
            name = entry.get(self.name) if isinstance(entry, dict) else None
            if not isinstance(name, str) or not self._generates(entry):
                continue
            name = name.removeprefix(self.prefix)
            if 0 < len(name) <= _LONGEST_NAME and name.isprintable() and name == name.strip():
                yield ListedModel(name, _figure(entry, self.window), _figure(entry, self.max_output_tokens))

    def _generates(self, entry: Json) -> bool:
        methods = entry.get(self.methods) if isinstance(entry, dict) else None
        return not isinstance(methods, list) or self.generates in methods


def _small(fields: dict[str, jsonio.Raw]) -> Iterator[tuple[str, jsonio.Raw]]:
    """Yield the fields of a page that are not the list itself."""
    return ((name, raw) for name, raw in fields.items() if len(bytes(raw)) <= 4096)


def _figure(entry: Json, paths: Sequence[str]) -> int | None:
    for path in paths:
        value = entry
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_TOKENS:
            return value
    return None


# OpenAI lists names only. Compatible services add figures: OpenRouter and Moonshot `context_length`, vLLM
# `max_model_len`, Groq `context_window`.
OPENAI_MODEL_LIST = JsonModelList(
    "data",
    "id",
    ("context_length", "max_model_len", "context_window"),
    ("top_provider.max_completion_tokens", "max_completion_tokens"),
)


def page_query(call: ApiRequest, name: str, **more: str) -> str:
    """Return the query of a request for a list: `more`, and the token of a further page under this name."""
    page = call.hints.get("page")
    return urlencode({**more, **({name: page} if page else {})})
