# Sourced by the scripts beside this file: installs system packages that are missing.
#
#   need "command:package" ...
#
# A package is installed only where its command is not found. In a bare "command" the two have
# the same name. A path stands for itself: "/usr/share/java/zookeeper.jar:zookeeper".

need() {
    local entry missing=()
    for entry in "$@"; do
        if [[ $entry == /* ]]; then
            [[ -e ${entry%%:*} ]] || missing+=("${entry#*:}")
        # Servers live in sbin, which is not in everybody's PATH.
        elif ! PATH="$PATH:/usr/sbin:/sbin" command -v "${entry%%:*}" >/dev/null; then
            missing+=("${entry#*:}")
        fi
    done
    install_missing "${missing[@]}"
}

# The include files that come with protoc; Debian has them in a package of their own.
need_protobuf_includes() {
    local dir
    for dir in "${PROTOC_INCLUDE:-}" /usr/include /usr/local/include /opt/homebrew/include; do
        [[ -e "$dir/google/protobuf/descriptor.proto" ]] && return 0
    done
    install_missing libprotobuf-dev
}

install_missing() {
    local missing=("$@")
    ((${#missing[@]})) || return 0

    if ! command -v apt-get >/dev/null; then
        echo "Missing: ${missing[*]}. There is no apt-get here, so install them by hand." >&2
        return 1
    fi
    if ((EUID != 0)); then
        echo "Missing: ${missing[*]}. Run as root, or: sudo apt-get install ${missing[*]}" >&2
        return 1
    fi
    echo "Installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}
