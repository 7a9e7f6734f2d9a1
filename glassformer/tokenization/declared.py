"""What the small JSON files beside a vocabulary declare: special tokens, options, the model's kind.

Read as data, in old and new layouts: a token is a string or {"content": ...}; roles stand in
`tokenizer_config.json` or `special_tokens_map.json`; added tokens in `added_tokens_decoder`,
`added_tokens.json`, `additional_special_tokens` or `extra_special_tokens`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from glassformer.errors import GlassformerError
from glassformer.tokenization.folder import read_bytes, read_object_if_there

ROLES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
_CARRIED = (SPECIAL_MAP, ADDED, "chat_template.jinja")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Everything the folder says about its tokenizer besides the vocabulary.

    config           tokenizer_config.json as it stands
    roles            role to token; None where the folder says there is none
    added            (id or None, token), tokens beside the plain vocabulary
    role_ids         role to id, as the model's own config files give them
    tokenizer_class  the reference library's class, without "Fast"
    model_type       the model's kind, from config.json
    carried          files handed on unchanged when saving
    """

    folder: Path
    config: dict[str, Any]
    roles: dict[str, AddedToken | None]
    added: list[tuple[int | None, AddedToken]]
    role_ids: dict[str, int]
    tokenizer_class: str | None
    model_type: str | None
    carried: dict[str, bytes]

    def role(self, name: str, default: str | None = None) -> AddedToken | None:
        """The token of a role: what the folder says, else the default of its layout."""
        if name in self.roles:
            return self.roles[name]
        return None if default is None else AddedToken(default, normalized=False, special=True)

    def flag(self, name: str, default: bool) -> bool:
        """A yes-or-no option of tokenizer_config.json; null counts as not given."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise GlassformerError(
                f"{self.folder / CONFIG} has {name} = {value!r}, where true or false is due."
            )
        return value


def read_declared(folder: Path) -> Declared:
    """Read the declarations of a model folder; files that are not there declare nothing."""
    config = read_object_if_there(folder / CONFIG)
    special_map = read_object_if_there(folder / SPECIAL_MAP)
    model = read_object_if_there(folder / "config.json")
    generation = read_object_if_there(folder / "generation_config.json")

    roles: dict[str, AddedToken | None] = {}
    for path, source in ((folder / SPECIAL_MAP, special_map), (folder / CONFIG, config)):
        for role in ROLES:
            key = f"{role}_token"
            if key in source:
                value = source[key]
                roles[role] = None if value is None else _token(value, path, key, special=True)

    role_ids: dict[str, int] = {}
    for source in (generation, model):
        for role in ROLES:
            value = source.get(f"{role}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                role_ids[role] = value

    class_name = _text(config.get("tokenizer_class")) or _text(model.get("tokenizer_class"))
    return Declared(
        folder=folder,
        config=config,
        roles=roles,
        added=_added(folder, config, special_map),
        role_ids=role_ids,
        tokenizer_class=class_name.removesuffix("Fast") if class_name else None,
        model_type=_text(model.get("model_type")),
        carried={name: read_bytes(folder / name) for name in _CARRIED if (folder / name).is_file()},
    )


def _added(
    folder: Path, config: dict[str, Any], special_map: dict[str, Any]
) -> list[tuple[int | None, AddedToken]]:
    found: dict[str, tuple[int | None, AddedToken]] = {}

    path = folder / CONFIG
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise GlassformerError(f"{path} must give added_tokens_decoder as an object.")
    for key, value in decoder.items():
        if not key.isdecimal():
            raise GlassformerError(f"{path} has {key!r} for an id in added_tokens_decoder.")
        token = _token(value, path, f"added_tokens_decoder.{key}", special=False)
        found[token.content] = (int(key), token)

    path = folder / ADDED
    for content, index in read_object_if_there(path).items():
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise GlassformerError(f"{path} gives token {content!r} the id {index!r}.")
        if content not in found:
            found[content] = (index, AddedToken(content, special=False, normalized=False))

    for name, source in ((SPECIAL_MAP, special_map), (CONFIG, config)):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            values = source.get(key) or []
            if isinstance(values, dict):  # the newest layout names them
                values = list(values.values())
            if not isinstance(values, list):
                raise GlassformerError(f"{folder / name} must give {key} as a list.")
            for value in values:
                token = _token(value, folder / name, key, special=True)
                index = found[token.content][0] if token.content in found else None
                if index is None or not found[token.content][1].special:
                    found[token.content] = (index, token)

    return sorted(found.values(), key=lambda pair: (pair[0] is None, pair[0] or 0))


def _token(value: Any, path: Path, key: str, *, special: bool) -> AddedToken:
    if isinstance(value, str) and value:
        return AddedToken(value, special=special, normalized=False)
    if isinstance(value, dict) and isinstance(value.get("content"), str) and value["content"]:
        flags = {flag: bool(value.get(flag, False)) for flag in _FLAGS}
        return AddedToken(value["content"], special=special or bool(value.get("special")), **flags)
    raise GlassformerError(
        f'{path} has {key} = {value!r}, where a token (a string or {{"content": ...}}) is due.'
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
