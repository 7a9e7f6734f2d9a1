"""Tokens and marks added to a vocabulary: special tokens, begin and end of text."""

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from glassformer.errors import GlassformerError
from glassformer.tokenization.declared import Declared


def add_declared(backend: Backend, declared: Declared) -> bool:
    """Add the declared tokens that the backend lacks; True where something changed."""
    present = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    grown = False
    for index, token in declared.added:
        if token.content not in present:
            grown = True
            _add(backend, token)
            given = backend.token_to_id(token.content)
            if index is not None and given != index:
                raise GlassformerError(
                    f"{declared.folder} declares id {index} for {token.content!r}, but its "
                    f"vocabulary gives that token id {given}."
                )
            present[token.content] = token
    for role in declared.roles.values():
        if role is not None and not (role.content in present and present[role.content].special):
            grown = True
            _add(backend, role)
            present[role.content] = role
    return grown


def add_known(backend: Backend, tokens: list[AddedToken]) -> None:
    """Make tokens of the vocabulary special; tokens it does not hold are passed over."""
    for token in tokens:
        if backend.token_to_id(token.content) is not None:
            _add(backend, token)


def _add(backend: Backend, token: AddedToken) -> None:
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def ends_template(
    backend: Backend, declared: Declared, role_ids: dict[str, int | None]
) -> processors.PostProcessor:
    """Begin and end marks around each text, as add_bos_token and add_eos_token ask for."""
    begin, end = (
        role_ids[role] if declared.flag(f"add_{role}_token", False) else None for role in ("bos", "eos")
    )

    def around(sequence: str, kind: int) -> list[str]:
        marks = (begin, None, end)
        names = [sequence if mark is None else backend.id_to_token(mark) for mark in marks]
        wanted = (begin is not None, True, end is not None)
        return [f"{name}:{kind}" for name, want in zip(names, wanted, strict=True) if want]

    return processors.TemplateProcessing(
        single=around("$A", 0),
        pair=around("$A", 0) + around("$B", 1),
        special_tokens=[(backend.id_to_token(i), i) for i in (begin, end) if i is not None],
    )
