#!/usr/bin/env bash
# Share FOLDER of this machine by the kernel's NFS server (Debian, Ubuntu; as root):
#
#     nfs_setup/server.sh FOLDER CLIENTS [--root-squash] [--dry-run] [--undo]
#
# CLIENTS: a network (10.0.0.0/24), a host, or several with commas between. All of them may write.
# What is there already is left as it is: call it twice, and the second call does nothing.
#
#   --root-squash  root of a client is nobody here. Without it root is root, so that jobs that run as
#                  root in containers can write; say it where users have root on their own machines.
#   --dry-run      print what would be done, and do nothing
#   --undo         take back what was done for FOLDER; its content and installed packages stay
#
# Exit code 1 if a step fails, 2 for unusable input.

set -euo pipefail
# shellcheck source=nfs_setup/steps.sh
. "$(dirname "$0")/steps.sh"

USAGE="$ME FOLDER CLIENTS"
EXPORTS=/etc/exports.d/cbdybw.exports
PIPES=/run/rpc_pipefs # Debian's place for what the kernel asks nfsdcld
THREADS=8
SQUASH=no_root_squash

flag() { # WORD
    [[ $1 = --root-squash ]] && SQUASH=root_squash
}

parse "$@"
FOLDER=${WORDS[0]%/}
CLIENTS=${WORDS[1]}
MARK="# cbdybw: $FOLDER"

check() {
    check_path FOLDER "${WORDS[0]}"
    [[ $CLIENTS =~ ^[A-Za-z0-9.:/_-]+(,[A-Za-z0-9.:/_-]+)*$ && ! $CLIENTS, =~ /0+, ]] ||
        die 2 "CLIENTS=$CLIENTS: name networks or hosts, as in 10.0.0.0/24; never all the world"
    if [[ -d $FOLDER && $(stat -f -c %T "$FOLDER") = nfs ]]; then
        die 2 "FOLDER=$FOLDER: is NFS itself; share a disk of this machine"
    fi
    if [[ -e /etc/exports ]] && awk -v at="$FOLDER" \
        '$1 == at || $1 == "\"" at "\"" { found = 1 } END { exit !found }' /etc/exports; then
        die 2 "FOLDER=$FOLDER: /etc/exports shares it already; remove that line"
    fi
}

server_runs() { [[ $(cat /proc/fs/nfsd/threads 2> /dev/null || echo 0) -gt 0 ]]; }

start() {
    if systemd_runs; then
        run systemctl enable --now nfs-server
        run exportfs -r
        return
    fi
    echo "systemd does not run here: the server is started now, but will not be at the next boot"
    if ! mountpoint -q "$PIPES"; then
        run mkdir -p "$PIPES"
        run mount -t rpc_pipefs pipes "$PIPES"
    fi
    mountpoint -q /proc/fs/nfsd || run mount -t nfsd nfsd /proc/fs/nfsd
    # It writes down who held what. Without it nobody may open a file for 90 s after each start.
    run mkdir -p /var/lib/nfs/nfsdcld
    run nfsdcld --pipefsdir="$PIPES"
    run exportfs -r
    # Version 4 alone: version 3 would need rpcbind and statd beside.
    run rpc.nfsd --no-nfs-version 3 --tcp --no-udp "$THREADS"
    run rpc.mountd --no-nfs-version 3
}

stop() {
    if systemd_runs; then
        run systemctl disable --now nfs-server
        return
    fi
    run rpc.nfsd 0
    for pid in $(pidof rpc.mountd nfsdcld); do run kill "$pid"; done
    run umount /proc/fs/nfsd
}

# Whether this machine shares anything but FOLDER.
others() {
    for table in /etc/exports /etc/exports.d/*.exports; do
        ! without "$MARK" "$table" | grep -q '^[^#]' || return 0
    done
    return 1
}

# The lines of the exports file for FOLDER.
entry() {
    local line=$FOLDER
    for client in ${CLIENTS//,/ }; do
        line+=" $client(rw,sync,no_subtree_check,$SQUASH)"
    done
    echo "$MARK is shared by nfs_setup/server.sh, --undo takes it back; made:$NEW"
    echo "$line"
}

share() {
    local running=no old new
    ! server_runs || running=yes
    need exportfs nfs-kernel-server
    NEW=$(made "$MARK" "$EXPORTS")
    make_folder "$FOLDER"
    if [[ ! -d ${EXPORTS%/*} ]]; then
        run mkdir "${EXPORTS%/*}"
        NEW+=" exports.d"
    fi
    if [[ $running = no ]]; then
        [[ $NEW = *\ service* ]] || NEW+=" service"
        systemd_runs || mountpoint -q "$PIPES" || NEW+=" pipes"
    fi
    old=$(cat "$EXPORTS" 2> /dev/null || true)
    new=$(without "$MARK" "$EXPORTS" && entry)
    if [[ $old != "$new" ]]; then
        replace "$EXPORTS" <<< "$new"
        [[ $running = no ]] || run exportfs -r
    fi
    [[ $running = yes ]] || start
    [[ $DRY_RUN = yes ]] || echo "shared: $FOLDER, for $CLIENTS"
}

take_back() {
    NEW=$(made "$MARK" "$EXPORTS")
    if [[ -e $EXPORTS ]] && grep -qF "$MARK " "$EXPORTS"; then
        without "$MARK" "$EXPORTS" | replace "$EXPORTS"
        ! server_runs || run exportfs -r
        [[ $NEW != *\ service* ]] || ! server_runs || others || stop
        [[ $NEW != *\ pipes* ]] || ! mountpoint -q "$PIPES" || run umount --lazy "$PIPES"
        [[ $NEW != *\ exports.d* ]] || run rmdir --ignore-fail-on-non-empty "${EXPORTS%/*}"
        remove_folder "$FOLDER"
    fi
    [[ $DRY_RUN = yes ]] || echo "not shared: $FOLDER"
}

check
if [[ $UNDO = yes ]]; then take_back; else share; fi
