"""The rules of the floor plan: who may import whom, private names only in compat, sizes, names, a test for each module.

A rule takes the package as {dotted module name: source} and gives a list of complaints, so that floor_plan_test can
also show each rule a synthetic module that breaks it.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "jaxtrain"
# A module imports only from its own floor and those below it.
FLOORS = (
    {
        "typing",
        "duration",
        "pace",
        "timeline",
        "errors",
        "redact",
        "files",
        "compile_cache",
        "compat",
        "metrics",
        "config",
    },
    {
        "models",
        "data",
        "flops",
        "sharding",
        "layout",
        "partitioning",
        "param_groups",
        "schedules",
        "compiling",
        "distributed",
        "checkpoint",
        "workdir",
        "writers",
    },
    {"tasks", "build", "check", "optimizers"},
    {"step", "accumulation", "reduction"},
    {"evaluate", "params", "generate", "export", "reporting", "nonfinite"}
    | {"assembly", "experiment", "init_from", "result", "resume", "session"}
    | {"callbacks", "watchdog", "preemption", "profiling"},
    {"train"},
    {"plan", "drill", "replay", "verify", "doctor", "launch", "runs"},
    {"cli", "__main__", ""},  # "" is the package itself, whose names are loaded when they are asked for
)
WITHOUT_JAX = {
    "compile_cache",
    "config",
    "doctor",
    "duration",
    "errors",
    "redact",
    "preemption",
}  # used before JAX may be imported
JAX_FAMILY = ("jax", "jaxlib", "flax", "optax", "orbax", "grain")
IMPORT_NAMES = {
    "absl-py": "absl",
    "ipython": "IPython",
    "ml-collections": "ml_collections",
    "mlflow-skinny": "mlflow",
    "orbax-checkpoint": "orbax",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
}
EXTRAS = ("examples", "images", "notebook", "text", "trackers")  # of which the package itself imports something
NAMEDTUPLE_METHODS = {"_replace", "_asdict", "_fields", "_make"}
WITHOUT_TEST = {"typing", "__main__"}
FILE_LINES, FUNCTION_LINES, TRAIN_LINES = 300, 50, 80
Sources = Mapping[str, str]


def package() -> dict[str, str]:
    """Read every module of the package."""
    sources = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return sources


def unit(module: str) -> str:
    """Give the part of a module's name that has a floor: jaxtrain.data.text -> data."""
    return module.split(".")[1] if "." in module else ""


def floor(module: str) -> int | None:
    """Give the number of a module's floor; None: it is in no list."""
    return next((number for number, units in enumerate(FLOORS) if unit(module) in units), None)


def imports(source: str, *, when_loaded: bool = False) -> Iterator[tuple[int, str, str]]:
    """Give (line, dotted name, the name it is bound to) of each import; `when_loaded`: not those inside functions."""
    nodes = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name, name.asname or name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield node.lineno, f"{'.' * node.level}{node.module or ''}.{name.name}", name.asname or name.name
        elif when_loaded and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
        elif not (when_loaded and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            nodes.extend(ast.iter_child_nodes(node))


def upward_imports(sources: Sources) -> list[str]:
    """Complain about imports, also inside functions, from a floor above the module's own."""
    found = []
    for module, source in sources.items():
        if floor(module) is None:
            found.append(f"{module} has no floor: give it one in FLOORS")
            continue
        for line, name, _ in imports(source):
            if name.startswith("."):
                found.append(f"{module}:{line} imports {name}: write the whole name")
            elif name.split(".")[0] == PACKAGE and (floor(name) is None or floor(name) > floor(module)):
                found.append(f"{module}:{line} on floor {floor(module)} imports {name} of floor {floor(name)}")
    return found


def loaded_by(sources: Sources, name: str) -> set[str]:
    """Give everything that importing `name` imports in turn: modules of the package, and names of other packages."""
    waiting, loaded = [name], set()
    while waiting:
        name = waiting.pop()
        parts = name.split(".")
        prefixes = {".".join(parts[: stop + 1]) for stop in range(len(parts))} & sources.keys()
        waiting += [
            imported
            for module in prefixes - loaded
            for _, imported, _ in imports(sources[module], when_loaded=True)
            if imported not in loaded
        ]
        loaded |= prefixes | {name}
    return loaded


def early_jax(sources: Sources) -> list[str]:
    """Complain about modules of WITHOUT_JAX that load JAX, also by way of another module."""
    return [
        f"importing {module} imports {name}"
        for module in sources
        if unit(module) in WITHOUT_JAX
        for name in sorted(loaded_by(sources, module))
        if name.split(".")[0] in JAX_FAMILY
    ]


def undeclared_imports(sources: Sources, pyproject: str) -> list[str]:
    """Complain about imports of packages that pyproject does not name, and of an extra's outside a function."""
    project = tomllib.loads(pyproject)["project"]

    def names(requirements: list[str]) -> set[str]:
        bare = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements}
        return {IMPORT_NAMES.get(name, name) for name in bare}

    core = names(project["dependencies"]) | {PACKAGE, "__future__"} | set(sys.stdlib_module_names)
    extras = set().union(*(names(project["optional-dependencies"][extra]) for extra in EXTRAS))
    found = []
    for module, source in sources.items():
        at_load = {(line, name) for line, name, _ in imports(source, when_loaded=True)}
        for line, name, _ in imports(source):
            top = name.split(".")[0]
            if top in extras - core and (line, name) in at_load:
                found.append(f"{module}:{line} imports {name} of an extra for everyone: import it in the function")
            elif top not in core | extras:
                found.append(f"{module}:{line} imports {name}, which pyproject.toml does not name")
    return found


def private(name: str) -> bool:
    """Say whether a part of a dotted name starts with an underscore; `__version__` and the like do not count."""
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def defined_names(sources: Sources) -> set[str]:
    """Give every name that the package itself defines, as a function, class, field or attribute."""
    found = set()
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def private_names(sources: Sources) -> list[str]:
    """Complain about private names of the JAX family outside compat, spelled as import, attribute or text."""
    ours = defined_names(sources) | NAMEDTUPLE_METHODS
    in_text = re.compile(rf"\b({'|'.join(JAX_FAMILY)})(\.\w+)*\._\w+")
    found = []
    for module, source in sources.items():
        if unit(module) == "compat":
            continue
        names = {bound: name for _, name, bound in imports(source)}
        found += [f"{module}:{line} imports {name}" for line, name, _ in imports(source) if private_of_family(name)]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and private(node.attr):
                root, _, rest = ast.unparse(node).partition(".")
                if root in names and private_of_family(f"{names[root]}.{rest}"):
                    found.append(f"{module}:{node.lineno} uses {names[root]}.{rest}")
                elif root not in names and node.attr not in ours and ast.unparse(node.value) not in ("self", "cls"):
                    found.append(f"{module}:{node.lineno} uses {ast.unparse(node)}, private to another package")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and in_text.search(node.value):
                found.append(f"{module}:{node.lineno} spells a private name: {node.value!r}")
    return found


def private_of_family(name: str) -> bool:
    """Say whether this is a private name of JAX or of a library of its family."""
    return name.split(".")[0] in JAX_FAMILY and private(name)


def too_long(sources: Sources) -> list[str]:
    """Complain about files and functions over the guide sizes."""
    found = []
    for module, source in sources.items():
        if (lines := len(source.splitlines())) > FILE_LINES:
            found.append(f"{module} has {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                limit = TRAIN_LINES if (module, node.name) == (f"{PACKAGE}.train", "train") else FUNCTION_LINES
                if lines > limit:
                    found.append(f"{module}:{node.lineno} {node.name} has {lines} lines")
    return found


def empty_names(sources: Sources) -> list[str]:
    """Complain about modules whose name says nothing of what they hold."""
    return [module for module in sources if {"utils", "util", "helpers", "common", "misc"} & set(module.split("."))]


def untested(sources: Sources, test_files: set[str]) -> list[str]:
    """Complain about modules without a test file of the same place and name."""
    wanted = {module: "/".join(module.split(".")[1:]) + "_test.py" for module in sources if unit(module)}
    packages = {module.rpartition(".")[0] for module in sources}
    return [
        f"{module}: tests/{path} is missing"
        for module, path in wanted.items()
        if unit(module) not in WITHOUT_TEST and module not in packages and path not in test_files
    ]
