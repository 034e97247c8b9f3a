#!/usr/bin/env bash
# Mount a folder that an NFS server shares, now and at each boot (Debian, Ubuntu; as root):
#
#     nfs_setup/client.sh SERVER:EXPORT MOUNTPOINT [--dry-run] [--undo]
#
# with the options that runs need (OPTIONS below). What is there already is left as it is: call it
# twice, and the second call does nothing. A mount of the same with other options is mounted anew.
#
#   --dry-run  print what would be done, and do nothing
#   --undo     take back what was done for MOUNTPOINT; installed packages stay
#
# Afterwards `python -m nfs_setup.doctor MOUNTPOINT` tries it. Exit code 1 if a step fails, 2 for
# unusable input.

set -euo pipefail
# shellcheck source=nfs_setup/steps.sh
. "$(dirname "$0")/steps.sh"

USAGE="$ME SERVER:EXPORT MOUNTPOINT"
TABLE=/etc/fstab
# hard: writers wait for a server that is away. lookupcache, actimeo: new files and sizes are seen
# within a second or two on other hosts.
OPTIONS=vers=4.2,proto=tcp,hard,lookupcache=positive,actimeo=1
WAIT=90 # seconds for the server, which takes that long after a restart

flag() { return 1; }

parse "$@"
SOURCE=${WORDS[0]}
MOUNTPOINT=${WORDS[1]%/}
MARK="# cbdybw: $MOUNTPOINT"

check() {
    local taken
    [[ $SOURCE =~ ^[A-Za-z0-9._-]+:/[^[:space:]#,\"]*$|^\[[0-9a-fA-F:]+\]:/[^[:space:]#,\"]*$ ]] ||
        die 2 "SERVER:EXPORT=$SOURCE: say whose folder it is, as in 10.0.0.1:/srv/runs"
    check_path MOUNTPOINT "${WORDS[1]}"
    taken=$(without "$MARK" "$TABLE" | awk -v at="$MOUNTPOINT" '!/^#/ && $2 == at')
    [[ -z $taken ]] ||
        die 2 "MOUNTPOINT=$MOUNTPOINT: $TABLE mounts something there already; remove that line"
}

mounted() { findmnt -n -o SOURCE --mountpoint "$MOUNTPOINT" 2> /dev/null | tail -n 1; }

# Whether what is mounted has OPTIONS: the kernel lists actimeo as its four parts.
has_options() {
    local there
    there=$(findmnt -n -o OPTIONS --mountpoint "$MOUNTPOINT" | tail -n 1)
    for option in vers=4.2 proto=tcp hard lookupcache=pos ac{reg,dir}{min,max}=1; do
        [[ ,$there, = *,$option* ]] || return 1
    done
}

mount_it() {
    local there
    there=$(mounted)
    if [[ -n $there && $there != "$SOURCE" ]]; then
        die 2 "MOUNTPOINT=$MOUNTPOINT: $there is mounted there; umount it, or name another folder"
    fi
    if [[ -n $there ]]; then
        ! has_options || return 0
        run umount "$MOUNTPOINT" || die 1 "$MOUNTPOINT: has other options and is in use; try later"
    fi
    run timeout "$WAIT" mount -t nfs -o "$OPTIONS" "$SOURCE" "$MOUNTPOINT"
}

join() {
    need mount.nfs nfs-common
    local old new
    make_folder "$MOUNTPOINT"
    if ! mount_it; then
        remove_folder "$MOUNTPOINT"
        die 1 "$SOURCE: cannot be mounted; look at the server, its firewall (TCP 2049) and exports"
    fi
    old=$(cat "$TABLE" 2> /dev/null || true)
    NEW=$(made "$MARK" "$TABLE")$NEW
    new=$(
        without "$MARK" "$TABLE"
        echo "$MARK is mounted by nfs_setup/client.sh, --undo takes it back; made:$NEW"
        echo "$SOURCE $MOUNTPOINT nfs $OPTIONS,_netdev 0 0"
    )
    if [[ $old != "$new" ]]; then
        replace "$TABLE" <<< "$new"
        ! systemd_runs || run systemctl daemon-reload
    fi
    [[ $DRY_RUN = yes ]] || echo "mounted: $SOURCE on $MOUNTPOINT"
}

take_back() {
    NEW=$(made "$MARK" "$TABLE")
    if [[ -e $TABLE ]] && grep -qF "$MARK " "$TABLE"; then
        [[ $(mounted) != "$SOURCE" ]] || run umount "$MOUNTPOINT"
        without "$MARK" "$TABLE" | replace "$TABLE"
        ! systemd_runs || run systemctl daemon-reload
        remove_folder "$MOUNTPOINT"
    fi
    [[ $DRY_RUN = yes ]] || echo "not mounted: $MOUNTPOINT"
}

check
if [[ $UNDO = yes ]]; then take_back; else join; fi
