"""Answers questions about the workspace from `cargo metadata` on the standard input."""

import json
import sys

# Features that need a newer Rust than the crate does, with the crates that they bring.
NEWER = {}


def version(text):
    parts = [int(part) for part in text.split("-")[0].split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def main():
    question = sys.argv[1]
    metadata = json.load(sys.stdin)
    library = next(p for p in metadata["packages"] if p["name"] == "tower-lock")
    if question == "features":
        print("\n".join(name for name in library["features"] if name != "default"))
    elif question == "examples":
        for package in metadata["packages"]:
            for target in package["targets"]:
                if "example" in target["kind"] and package["source"] is None:
                    print(target["name"])
    elif question == "target":
        print(metadata["target_directory"])
    elif question == "rust-version":
        print(library["rust_version"])
    elif question == "msrv":
        ours = version(library["rust_version"])
        newer = [
            f"{p['name']} {p['version']} needs Rust {p['rust_version']}"
            for p in metadata["packages"]
            if p["rust_version"]
            and version(p["rust_version"]) > ours
            and p["name"] not in NEWER
        ]
        if newer:
            sys.exit("Newer than our rust-version:\n" + "\n".join(newer))
        declared = sum(1 for p in metadata["packages"] if p["rust_version"])
        print(f"{declared} of {len(metadata['packages'])} crates say what they need: "
              f"none more than {library['rust_version']}.")
    else:
        sys.exit(f"unknown question: {question}")


main()
