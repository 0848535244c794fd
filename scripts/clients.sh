# Sourced by the scripts beside this file: clients of other languages that the tests run against
# ours, in <target directory>/clients, from the versions that tests/interop/ pins.

foreign_clients() {
    local pinned=tests/interop/redis zookeeper=tests/interop/zookeeper/requirements.txt target
    target=$(cargo metadata --format-version 1 --no-deps --locked |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/clients
    mkdir -p "$target"

    # What was asked for is copied last: it says that it is there.
    if ! cat "$pinned/requirements.txt" "$zookeeper" | cmp -s - "$target/python.installed"; then
        echo 'Installing redis-py and kazoo'
        rm -rf "$target/python"
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
            --target "$target/python" --requirement "$pinned/requirements.txt" \
            --requirement "$zookeeper"
        cat "$pinned/requirements.txt" "$zookeeper" >"$target/python.installed"
    fi
    if ! cmp -s "$pinned/package-lock.json" "$target/npm.installed"; then
        echo 'Installing npm redlock'
        cp "$pinned/package.json" "$pinned/package-lock.json" "$target/"
        npm ci --prefix "$target" --silent --ignore-scripts --no-audit --no-fund
        cp "$pinned/package-lock.json" "$target/npm.installed"
    fi
}
