"""For doctests in src: modules that need a library which is not installed are passed over."""

from importlib.util import find_spec

OPTIONAL = {"lightning": "lightning", "huggingface": "transformers"}
collect_ignore = [
    f"src/balcal/adapters/{module}.py" for module, library in OPTIONAL.items() if find_spec(library) is None
]
