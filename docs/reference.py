"""Generate the reference pages of the site: Python API, model options, recipe, commands, HTTP API.

`pages` returns them as Markdown. Python names are directives for mkdocstrings, which reads the docstrings;
the other pages are tables generated from the code, so they are always up to date.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from importlib import import_module
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer
import typer.main

from docs.docstrings import sentence
from docs.glossary import GLOSSARY, HTTP_FIELDS
from glassformer import schema as settings
from glassformer.cli.main import app, commands
from glassformer.families.registry import families
from glassformer.generation import GenerationConfig
from glassformer.server.app import create_app
from glassformer.tasks.registry import REQUIRED, TaskSpec, tasks
from glassformer.training.job_spec import JobSpec
from glassformer.training.jobs import all_jobs, job_names
from glassformer.training.recipe import ModelOptions, TokenizerOptions, TrainingOptions

FORWARD = ("forward",)


@dataclass(frozen=True)
class Section:
    """A heading and the names of one module to list under it, by default its `__all__`.

    members: the methods to show, for each class or for all classes
    """

    title: str
    module: str
    names: tuple[str, ...] = ()
    intro: str = ""
    members: Mapping[str, tuple[str, ...]] | tuple[str, ...] = ()

    def members_of(self, name: str) -> tuple[str, ...]:
        return self.members.get(name, ()) if isinstance(self.members, Mapping) else self.members


def _modules(title: str, names: str, intro: str = "") -> Section:
    return Section(title, "glassformer", tuple(names.split()), intro, FORWARD)


PYTHON: dict[str, tuple[str, str, tuple[Section, ...]]] = {
    "api": (
        "Load, build, train and save",
        "The functions most programs start with, and what `load` returns. `Pipeline` also has a method for "
        "each [task](task-methods.md).",
        (
            Section("Functions", "glassformer", tuple("load build tiny train save from_torch".split())),
            Section(
                "Loaded models",
                "glassformer",
                ("Pipeline", "Bundle", "JobInfo"),
                members={"Pipeline": ("stream", "chat", "stream_chat")},
            ),
            Section(
                "Training",
                "glassformer",
                ("Trainer", "TrainingTask", "TrainerCallback"),
                "[Train your own module](../guides/custom-training.md) shows how to use them.",
                members={
                    "Trainer": ("train", "evaluate"),
                    "TrainingTask": ("loss", "evaluate", "optimizer"),
                    "TrainerCallback": tuple(
                        "on_train_begin on_step_end on_log on_evaluate on_save on_train_end".split()
                    ),
                },
            ),
            Section(
                "Errors",
                "glassformer",
                ("GlassformerError",),
                "Every error that your input or files can cause is a subclass of `GlassformerError`.",
            ),
        ),
    ),
    "modules": (
        "Modules",
        "The parts of a Transformer as `torch.nn` modules. `B` is the batch, "
        "`T` the queries, `S` the keys, `D` "
        "`d_model`, `H` the heads, `K` the width of a head. "
        "[The Transformer, part by part](../concepts/parts.md) explains them in order.",
        (
            _modules(
                "From positions to the Transformer",
                "PositionalEncoding ScaledDotProductAttention MultiHeadAttention FeedForwardNetwork "
                "EncoderLayer DecoderLayer Encoder Decoder TransformerEncoderBlock TransformerEncoder "
                "Transformer",
                "The classes of a textbook chapter, in its order. The sections after this one describe the "
                "classes that they are made of.",
            ),
            _modules("Attention", "attend Mask"),
            _modules(
                "Positions",
                "SinusoidalPositions LearnedPositions RotaryPositions RelativeBias AlibiBias "
                "DisentangledPositions",
                "Each takes position ids, not vectors.",
            ),
            _modules("Feed-forward", "FeedForward"),
            Section("Norms", "glassformer", ("LayerNorm", "RMSNorm", "BatchNorm")),
            _modules("Layers", "Block Stack", "An encoder and a decoder are both a `Stack` of `Block`s."),
            Section(
                "Inputs",
                "glassformer",
                ("TextInputs", "ImageInputs", "SeriesInputs", "LatentInputs", "Masks", "Memory"),
                "What a model accepts instead of a tensor. The embedding reads it; the layers do not see it.",
                members={"Memory": ("of",)},
            ),
            Section("Token embeddings", "glassformer.core.embeddings", ("TokenInput",), members=FORWARD),
            Section("Image patches", "glassformer.core.vision.embeddings", ("ImageInput",), members=FORWARD),
            Section(
                "Models",
                "glassformer",
                ("EncoderDecoder", "EncoderOnly", "DecoderOnly"),
                "Built by `glassformer.build`, from a preset or a [spec](specs.md).",
                members={
                    "EncoderDecoder": ("forward", "encode", "decode", "generate"),
                    "EncoderOnly": ("forward",),
                    "DecoderOnly": ("forward", "generate"),
                },
            ),
            Section(
                "KV cache",
                "glassformer",
                ("KVCache",),
                members={"KVCache": ("allocate", "append", "advance", "select", "reorder")},
            ),
        ),
    ),
    "observe": (
        "Observation",
        "Record and edit any tensor inside a forward.",
        (
            Section(
                "Observe",
                "glassformer",
                ("observe", "Observer", "Record"),
                members={"Record": ("names", "attentions", "weights", "scores"), "Observer": ("scope",)},
            ),
        ),
    ),
    "generation": (
        "Generation",
        "Token generation on ids, below the tasks. [The "
        "guide](../guides/generate.md) explains the methods. The "
        "fields of `GenerationConfig` are the keyword arguments of `generate`, "
        "`translate` and the like, under "
        "the names that transformers uses.",
        (Section("", "glassformer.generation"),),
    ),
    "tasks": (
        "Tasks",
        "One class per task. `Pipeline` has a method for each; construct the class for scores, warnings and "
        "alternatives, or to stream over any number of inputs with `run`.",
        (Section("", "glassformer.tasks", members={"Task": ("__call__", "run")}),),
    ),
    "training": (
        "Training",
        "`glassformer.train` runs a whole training. This page has the recipe "
        "as classes, and the parts of the "
        "training loop. [Recipe keys](recipe.md) explains every setting.",
        (
            Section("Training loop", "glassformer.training"),
            Section(
                "Recipes",
                "glassformer.training.recipe",
                ("Recipe", "read_recipe", "parse_recipe", "with_overrides"),
            ),
        ),
    ),
}


def pages() -> dict[str, str]:
    """Return all reference pages: path in the site -> Markdown."""
    texts = {name: python_page(*page) for name, page in PYTHON.items()}
    texts |= {name: write() for name, write in OTHER_PAGES.items()}
    return {f"reference/{name}.md": text for name, text in texts.items()}


def paths() -> list[str]:
    """Return the paths of the reference pages, without generating them."""
    return [f"reference/{name}.md" for name in (*PYTHON, *OTHER_PAGES)]


def nav() -> list[dict[str, Any]]:
    """Return the entries of the navigation."""
    python = [
        *({title: f"reference/{name}.md"} for name, (title, _, _) in PYTHON.items()),
        {"Specs": "reference/specs.md"},
    ]
    return [
        {"Tasks": "reference/task-methods.md"},
        {"Python API": python},
        {"Model options": "reference/model-options.md"},
        {"Recipe keys": "reference/recipe.md"},
        {"Command line": "reference/cli.md"},
        {"HTTP API": "reference/http.md"},
    ]


# Python


def python_page(title: str, intro: str, sections: Iterable[Section]) -> str:
    parts = [f"# {title}", intro]
    for section in sections:
        parts += [f"## {section.title}" if section.title else "", section.intro]
        names = section.names or import_module(section.module).__all__
        level = 3 if section.title else 2
        parts += [directive(f"{section.module}.{name}", section.members_of(name), level) for name in names]
    return "\n\n".join(filter(None, parts)) + "\n"


def directive(name: str, members: Iterable[str] = (), level: int = 2) -> str:
    options = [f"heading_level: {level}"]
    if members:
        listed = f"[{', '.join(members)}]"
        options += [f"members: {listed}", f"inherited_members: {listed}"]
    return "\n".join([f"::: {name}", "    options:", *(f"      {option}" for option in options)])


def public_names(module: Any) -> list[str]:
    """Return the public classes and functions that a module defines itself, in source order."""
    members = inspect.getmembers(module, lambda member: inspect.isclass(member) or inspect.isfunction(member))
    own = [m for name, m in members if m.__module__ == module.__name__ and not name.startswith("_")]
    return [member.__name__ for member in sorted(own, key=lambda m: inspect.getsourcelines(m)[1])]


SPECS = {
    "layers": "Layers",
    "text": "Texts",
    "images": "Images",
    "series": "Time series",
    "image_text": "Texts with images",
    "diffusion": "Diffusion",
    "convolution": "Convolutional levels, autoencoders and UNets",
    "architectures": "Models",
    "image_architectures": "Models of images",
    "pipelines": "Models that draw",
}  # the modules of `core.spec`, in the order of the page


def specs_page() -> str:
    parts = [
        "# Specs",
        "`glassformer.spec` holds the frozen dataclasses that describe a "
        "model. `glassformer.build(spec)` turns "
        "one into modules, and `spec.json` in a saved folder stores it. Start from `EncoderDecoderSpec`, "
        "`EncoderOnlySpec` or `DecoderOnlySpec` under [Models](#models); their fields are the other classes.",
    ]
    for module, title in SPECS.items():
        names = public_names(import_module(f"glassformer.core.spec.{module}"))
        parts += [f"## {title}", *(directive(f"glassformer.core.spec.{name}", level=3) for name in names)]
    return "\n\n".join(parts) + "\n"


# model options


def model_options_page() -> str:
    parts = [
        "# Model options",
        "The options of each family: keyword arguments of `glassformer.build(name, ...)` and "
        "`glassformer.tiny(name, ...)`, and keys of `model` in a "
        "[recipe](recipe.md). `name` is a family or one "
        "of its presets. [Model families](../concepts/families.md) lists what each one loads.",
    ]
    for name, family in families().items():
        types = get_type_hints(getattr(family.build, "func", family.build))
        rows = [
            (
                f"`{option.name}`",
                GLOSSARY.get(f"{name}.{option.name}") or GLOSSARY[option.name],
                f"`{type_name(types[option.name])}`",
                f"`{short_default(option.default)}`",
            )
            for option in inspect.signature(family.build).parameters.values()
        ]
        presets = ", ".join(f"`{preset}`" for preset in family.presets)
        parts += [
            f"## `{name}`",
            f"Presets: {presets}",
            table(("option", "description", "type", "default"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def short_default(value: Any) -> str:
    """Format a default as in source code: of a spec, only the fields that differ from its own defaults."""
    if not is_dataclass(value):
        return repr(value)
    changed = (f for f in dataclass_fields(value) if getattr(value, f.name) != f.default)
    return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in changed)})"


def type_name(hint: Any) -> str:
    """Format a type as in source code, with the choices of a literal: `'pre' | 'post'`."""
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"tuple[{', '.join('...' if one is ... else type_name(one) for one in get_args(hint))}]"
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))


# recipe


def recipe_page() -> str:
    parts = [
        "# Recipe keys",
        "A recipe is a YAML file with the sections below; only `job` and "
        "`data` are required. A key that is left "
        "out, or `null`, is chosen for your data and device, and the run folder stores the choice. "
        "`--set section.key=value` overrides a key on the command line. [The guide](../guides/train.md) "
        "explains how to choose values.",
        "## Top level",
        table(
            ("key", "type", "default", "description"),
            [
                ("`job`", " or ".join(f"`{job}`" for job in job_names()), "required", "What to train."),
                ("`seed`", "integer", "`1`", "Seed of initialization, data order and dropout."),
                ("`data`", "section", "required", "Files and how to read them; depends on the job."),
                ("`tokenizer`", "section", "", "Text jobs only."),
                ("`model`", "section, or a name for short", "", "What to build, or a folder to fine-tune."),
                ("`training`", "section", "", "The training loop."),
            ],
        ),
    ]
    groups: dict[str, list[Any]] = {}
    for key in describe_keys():
        title = f"Data for {key.job.title}" if key.job else key.section.capitalize()
        groups.setdefault(title, []).append(key)
    for title, keys in groups.items():
        parts.append(f"## {title}")
        if keys[0].job:
            parts.append(job_introduction(keys[0].job))
        if title == "Model":
            parts.append("Every other key is an option of the family: see [model options](model-options.md).")
        rows = [
            (
                f"`{key.key}`",
                sentence(key.description),
                key.type.replace("tuple", "list"),
                key.unit,
                f"`{key.interval}`".replace(" ", "\u00a0") if key.interval else "",
                key.default if key.default == "required" else f"`{key.default or 'null'}`",
            )
            for key in keys
            if key.key != "overrides"
        ]
        parts.append(table(("key", "description", "type", "unit", "range", "default"), rows))
    return "\n\n".join(parts) + "\n"


class KeyDescription(NamedTuple):
    """A key of a recipe, for the reference. job: of a data key; None for the other sections.

    default: as in YAML, or "required". interval: valid numbers, e.g. `[0, 1)`.
    """

    section: str
    job: JobSpec | None
    key: str
    type: str
    default: str
    unit: str
    interval: str
    description: str


def describe_keys() -> Iterator[KeyDescription]:
    """Return the descriptions of all keys of all sections of a recipe."""
    sections: list[tuple[JobSpec | None, type[settings.Settings]]] = [(job, job.data) for job in all_jobs()]
    for job, section in [*sections, *((None, s) for s in (TokenizerOptions, ModelOptions, TrainingOptions))]:
        types = settings.field_types(section)
        for key in dataclasses.fields(section):  # type: ignore[arg-type]
            info = key.metadata
            yield KeyDescription(
                section=section.section,
                job=job,
                key=key.name,
                type=settings.describe_type(types[key.name]),
                default=_format_default(key),
                unit=info["unit"],
                interval=info["interval"],
                description=info["description"],
            )


def _format_default(key: dataclasses.Field[Any]) -> str:
    if key.default_factory is not dataclasses.MISSING:
        return ""
    if key.default is settings.REQUIRED:
        return "required"
    return json.dumps(key.default) if not isinstance(key.default, str) else key.default


# tasks


def tasks_page() -> str:
    """Return the page of the declared tasks: a table, and the options of each."""
    parts = [
        "# Tasks",
        "Each task is a method of `Pipeline`, a [command](cli.md), a [route](http.md), and a task of "
        "`glassformer batch`, with the same options. `glassformer inspect MODEL` lists the tasks of a "
        "model. A training job trains models for a task.",
        table(
            ("task", "description", "input", "training job", "metric"),
            [
                (
                    f"[`{spec.name}`](#{spec.name})",
                    spec.summary,
                    spec.inputs.name,
                    f"`{spec.job}`" if spec.job else "",
                    f"`{spec.metric}`" if spec.metric else "",
                )
                for spec in tasks().values()
            ],
        ),
    ]
    for spec in tasks().values():
        given = [spec.argument, spec.second] if spec.second else [spec.argument]
        parts += [
            f"## `{spec.name}`",
            f"{spec.summary} {spec.description}",
            f"```python\npipeline.{spec.name}({', '.join(given)}, ...)  # e.g. {spec.examples[0]!r}\n```",
            table(("option", "description", "default"), list(_option_rows(spec))),
        ]
        if any(option.owner for option in spec.all_options):
            parts.append("The other options are the fields of [`GenerationConfig`](generation.md).")
    return "\n\n".join(parts) + "\n"


def _option_rows(spec: TaskSpec) -> Iterator[tuple[str, str, str]]:
    for option in spec.all_options:
        if not option.owner:
            value = "required" if option.default is REQUIRED else f"`{option.default!r}`"
            yield f"`{option.name}`", option.help, "" if option.default is None else value


def job_introduction(job: JobSpec) -> str:
    """Describe a job: what it trains, its metrics, and the settings that it chooses."""
    chosen = {"model.preset": job.preset, "metric_for_best_model": job.metric, **job.defaults}
    unit = "tokens" if job.batch_unit == "tokens" else "examples"
    return (
        f"{job.summary} Metrics: {', '.join(f'`{name}`' for name in job.metrics)}. "
        f"Defaults: {', '.join(f'`{name}` {value}' for name, value in chosen.items())}; "
        f"a batch is limited in {unit} (`{job.batch_key}`)."
    )


# command line


def cli_page() -> str:
    parts = [
        "# Command line",
        "`glassformer COMMAND --help` prints the same. Exit codes: 0 success; "
        "1 a failed check of `verify`, or a "
        "bug; 2 invalid input; 130 interrupted.",
    ]
    panels: dict[str, list[str]] = {}
    for name, command in commands().items():
        panels.setdefault(command.panel, []).append(name)
    for panel, names in panels.items():
        parts.append(f"## {panel}")
        for name in names:
            parts += command_section(name, typer.main.get_command(app([name])).commands[name])
    return "\n\n".join(parts) + "\n"


def command_section(name: str, command: Any) -> Iterator[str]:
    """Render a command of the Typer app with its arguments and options."""
    yield f"### `glassformer {name}`"
    yield inspect.cleandoc(command.help)
    parameters = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    options = [parameter for parameter in parameters if parameter.param_type_name == "option"]
    yield f"```text\nglassformer {' '.join([name, *map(usage, arguments), '[OPTIONS]'])}\n```"
    context = typer.Context(command)
    rows = [(flag(option, context), option.help or "", default(option)) for option in options]
    if arguments:
        yield table(
            ("argument", "description"),
            [(f"`{usage(argument)}`", argument.help or "") for argument in arguments],
        )
    yield table(("option", "description", "default"), rows)


def usage(argument: Any) -> str:
    metavar = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")
    return metavar if argument.required else f"[{metavar}]"


def flag(option: Any, context: typer.Context) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    kind = option.display_type(context).strip("<>").removesuffix(" range")
    kind = re.sub(r"list\[(\w+)\]", r"\1", kind).lower()
    kind = option.metavar or {"str": "TEXT", "int": "INT", "float": "FLOAT", "path": "PATH"}.get(kind, kind)
    return f"{names} `{kind}`"


def default(option: Any) -> str:
    value = option.default
    return "" if value is None or value is False else f"`{value}`"


# HTTP


def http_page() -> str:
    document = create_app({}).openapi()
    parts = [
        "# HTTP API",
        "The routes of `glassformer serve` and `glassformer explore`. Bodies are JSON. A running server has "
        "the same list at `/docs` and as an OpenAPI document at `/openapi.json`; "
        "[the guide](../guides/serve.md) shows requests.",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = next(iter(operation.get("tags", ())), "other")
            by_tag.setdefault(tag, []).extend(route_section(document, method, path, operation))
    for tag, sections in by_tag.items():
        parts += [f"## {tag[0].upper()}{tag[1:]}", *sections]
    return "\n\n".join(parts) + "\n"


def route_section(
    document: dict[str, Any], method: str, path: str, operation: dict[str, Any]
) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    yield operation.get("description", "")
    rows = [
        (
            parameter["name"],
            parameter["schema"],
            parameter.get("required", False),
            parameter.get("description") or about_field(parameter["name"]),
        )
        for parameter in operation.get("parameters", ())
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        body = resolve(document, content["schema"])
        rows += fields(body)
        yield body.get("description", "")
    if rows:
        yield field_table("request", document, rows)
    success = operation["responses"].get("200", {})
    for kind, content in success.get("content", {}).items():
        body = resolve(document, content.get("schema", {}))
        yield f"Response (`{kind}`). {body.get('description', '')}"
        if "properties" in body:
            yield field_table("response", document, fields(body))


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return target
    return schema


def fields(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any], bool, str]]:
    required = schema.get("required", ())
    return [
        (name, field, name in required, field.get("description") or about_field(name))
        for name, field in schema.get("properties", {}).items()
    ]


def about_field(name: str) -> str:
    """Return a description for a field without one, from the glossary or the generation option."""
    field = GenerationConfig.__dataclass_fields__.get(name)
    return HTTP_FIELDS.get(name) or ("" if field is None else field.metadata["description"])


def field_table(kind: str, document: dict[str, Any], rows: Iterable[tuple[str, Any, bool, str]]) -> str:
    cells = []
    for name, schema, required, about in rows:
        value = schema.get("default")
        if kind == "request":
            default_value = "required" if required else "" if value is None else f"`{json.dumps(value)}`"
            cells.append((f"`{name}`", about, describe_schema(document, schema), default_value))
        else:
            cells.append((f"`{name}`", about, describe_schema(document, schema)))
    header = (
        ("field", "description", "type", "default") if kind == "request" else ("field", "description", "type")
    )
    return table(header, cells)


def describe_schema(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Describe a JSON schema in short: `list of string`, `integer, 1 to 16`."""
    if "anyOf" in schema:
        choices = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(describe_schema(document, choice) for choice in choices))
    if "$ref" in schema:
        target = resolve(document, schema)
        names = ", ".join(f"`{name}`" for name in target.get("properties", {}))
        return f"object ({names})" if names else describe_schema(document, target)
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kind = schema.get("type", "any")
    if kind == "array":
        item = {key: value for key, value in schema.get("items", {}).items() if "imum" not in key.lower()}
        return f"list of {describe_schema(document, item)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {describe_schema(document, schema['additionalProperties'])}"
    return kind + limits(schema)


BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def limits(schema: dict[str, Any]) -> str:
    """Format the bounds of a number: `, 1 to 16`."""
    if "minimum" in schema and "maximum" in schema:
        return f", {schema['minimum']:g} to {schema['maximum']:g}"
    bounds = [
        f"{text} {schema[key]:g}" for key, text in BOUNDS.items() if abs(schema.get(key, 2**31)) < 2**31
    ]
    return ", " + " and ".join(bounds) if bounds else ""


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


OTHER_PAGES = {
    "specs": specs_page,
    "model-options": model_options_page,
    "recipe": recipe_page,
    "task-methods": tasks_page,
    "cli": cli_page,
    "http": http_page,
}
