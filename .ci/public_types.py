"""Checks which crates the public API names, from rustdoc's JSON.

Their breaking releases are ours, so there is a list of those that may be named. The types of
other crates stay behind our own.

The JSON's format is unstable, so this relies on little of it: `index` holds the items, `paths`
says which crate an id belongs to, and whoever names an item does so by an object with `id` and
`path`, or by an import's `id` and `source`.
"""

import json
import sys

ALLOWED = {
    "std", "core", "alloc",
    "http", "http_body", "bytes", "tower_layer", "tower_service", "axum", "axum_core", "tokio",
}
# An auto trait's impl names what a field is made of, which no user can see or rely on.
AUTO_TRAITS = {"Send", "Sync", "Unpin", "UnwindSafe", "RefUnwindSafe", "Freeze", "Sized"}


def references(node):
    """The ids that a part of the tree names."""
    if isinstance(node, dict):
        if node.get("id") is not None and ("path" in node or "source" in node):
            yield node["id"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def trait_name(impl):
    trait = impl.get("trait") or {}
    return (trait.get("path") or "").split("::")[-1]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        doc = json.load(file)
    crates = {int(number): krate["name"] for number, krate in doc["external_crates"].items()}
    seen, wrong = {}, {}
    for item in doc["index"].values():
        if item["crate_id"] != 0:
            continue
        impl = item["inner"].get("impl")
        if impl and (impl.get("is_synthetic") or impl.get("blanket_impl")
                     or trait_name(impl) in AUTO_TRAITS):
            continue
        for reference in references(item["inner"]):
            path = doc["paths"].get(str(reference))
            if path is None or path["crate_id"] == 0:
                continue
            crate = crates[path["crate_id"]]
            seen.setdefault(crate, "::".join(path["path"]))
            if crate not in ALLOWED:
                span = item.get("span") or {}
                where = f"{span.get('filename')}:{(span.get('begin') or ['?'])[0]}"
                wrong.setdefault("::".join(path["path"]), set()).add(where)
    # A format that we no longer understand would show nothing at all.
    if not {"http", "bytes", "tower_service"} <= seen.keys():
        sys.exit(f"rustdoc's JSON (format {doc.get('format_version')}) is not understood: "
                 f"it names only {sorted(seen)}.")
    if wrong:
        lines = [f"{path} at {', '.join(sorted(places))}" for path, places in sorted(wrong.items())]
        sys.exit("The public API names types of crates that are not on the list "
                 "(see CONTRIBUTING.md):\n" + "\n".join(lines))
    print("The public API names types of " + ", ".join(sorted(seen)) + ".")


main()
