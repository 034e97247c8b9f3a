# What server.sh and client.sh have in common. Sourced, with `set -euo pipefail`.
# shellcheck shell=bash disable=SC2034

ME=nfs_setup/$(basename "$0")
DRY_RUN=no
UNDO=no
WORDS=()
NEW="" # what was not there before, as the comment of an entry lists it

set -E
trap 'exit 1' ERR # after the failed step's own words, whatever its exit code

die() { # CODE MESSAGE
    echo "$ME: ${2//$'\n'/ }" >&2
    exit "$1"
}

# The two words into WORDS, the flags into DRY_RUN, UNDO and what the script itself knows (`flag`).
parse() { # ARGUMENTS OF THE SCRIPT
    for word in "$@"; do
        case $word in
            --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;;
            --dry-run) DRY_RUN=yes ;;
            --undo) UNDO=yes ;;
            -*) flag "$word" || die 2 "$word: not known; $ME --help lists what is" ;;
            *) WORDS+=("$word") ;;
        esac
    done
    [[ ${#WORDS[@]} -eq 2 ]] || die 2 "${#WORDS[@]} words given, not two; say $USAGE"
    [[ $DRY_RUN = yes || $(id -u) -eq 0 ]] || die 2 "needs root: sudo $ME …, or --dry-run to look"
}

# A folder's path that the tables of mounts and exports can hold.
check_path() { # WHAT PATH
    [[ $2 = /* && $2 != / ]] || die 2 "$1=$2: name a folder by its full path"
    [[ $2 != *[[:space:]\"\\#,]* ]] || die 2 "$1=$2: blanks, quotes, \\, # and commas are not for it"
    [[ ! -e $2 || -d $2 ]] || die 2 "$1=$2: is no folder; name one"
}

# Every change goes through here: told, and done unless only looked for.
run() { # COMMAND…
    echo "+ $*"
    [[ $DRY_RUN = yes ]] || "$@"
}

# Replace a file at one stroke by what stands on stdin; without content remove it.
replace() { # FILE
    local content
    content=$(cat && echo .) # $() takes line ends away
    content=${content%.}
    if [[ -z $content ]]; then
        run rm -f "$1"
        return
    fi
    echo "+ write $1:"
    printf '%s' "$content" | sed 's/^/    /'
    [[ $DRY_RUN = no ]] || return 0
    printf '%s' "$content" > "$1.cbdybw"
    if [[ -e $1 ]]; then chmod --reference="$1" "$1.cbdybw"; else chmod 644 "$1.cbdybw"; fi
    mv "$1.cbdybw" "$1"
}

# `file`, without the entry of ours that has `mark`: a comment and the line below it.
without() { # MARK FILE
    [[ ! -e $2 ]] || awk -v mark="$1" \
        'index($0, mark " ") == 1 { skip = 2 } skip-- > 0 { next } { skip = 0; print }' "$2"
}

# The words after "made:" in the comment with `mark`: what was not there before.
made() { # MARK FILE
    [[ ! -e $2 ]] || awk -v mark="$1" 'index($0, mark " ") == 1 { sub(/.*made:/, ""); print }' "$2"
}

# Make FOLDER where it is not there; into NEW which is the highest folder made for it.
make_folder() { # FOLDER
    [[ ! -d $1 ]] || return 0
    local top=$1
    while [[ ! -d ${top%/*}/ ]]; do top=${top%/*}; done
    run mkdir -p "$1"
    NEW+=" folder:$top"
}

# Undo `make_folder`, but for folders with something in them.
remove_folder() { # FOLDER
    [[ $NEW =~ \ folder:([^ ]+) ]] || return 0
    local folder=$1 top=${BASH_REMATCH[1]}
    while [[ $folder = "$top"* ]]; do
        run rmdir --ignore-fail-on-non-empty "$folder"
        folder=${folder%/*}
    done
}

need() { # PROGRAM PACKAGE
    command -v "$1" > /dev/null || [[ -x /sbin/$1 || -x /usr/sbin/$1 ]] && return
    run apt-get -qq update
    run env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes "$2"
}

systemd_runs() { [[ -d /run/systemd/system ]]; }
