"""The file with the list of models that `dragoman run codex` gives to Codex."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman.gateway.codex_models import OWN_MODELS, render_codex_models
from dragoman.gateway.model_entries import ModelEntry
from dragoman.wire import jsonio


@contextmanager
def catalogue_arguments(models: Iterable[ModelEntry], chosen: str) -> Iterator[tuple[str, ...]]:
    """Yield the arguments that give Codex a catalogue, in a file that exists while the context lasts.

    There are none for a model that Codex knows itself, and if no model was chosen.
    """
    if not chosen or chosen in OWN_MODELS:
        yield ()
        return
    with TemporaryDirectory(prefix="dragoman-") as folder:
        file = Path(folder) / "models.json"
        file.write_bytes(jsonio.encode({"models": render_codex_models(models, chosen)}))
        yield ("-c", f"model_catalog_json={jsonio.encode(str(file)).decode()}")
