"""Messages on MPI: bytes in buffers, no pickles, every link in order.

A payload is the vector's bytes followed by the body as int64; when a message has both, the length
of the body follows as one more int64. Kind, iteration and which of the two there are travel in
the tag. MPI keeps the order of messages between two ranks on one communicator, and each peer has
exactly one receive posted with any tag, so a small message never overtakes a large one.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Collection

import numpy as np

from cbdybw.clusters.worker import Kind, Message
from cbdybw.clusters.world import MPI
from cbdybw.problem import Weightless

MARK = 31  # the cluster's own kind of message: its sender has come to a meeting
_KINDS = {**{kind.value: kind for kind in Kind}, MARK: MARK}
_KIND_MASK, _VECTOR, _BODY, _ITERATION = 31, 1 << 5, 1 << 6, 7  # the tag's fields, lowest first
_NOBODY = 2  # references to a buffer that only a list and the argument of getrefcount hold
_BYTE = MPI.BYTE


def failed(error: MPI.Exception) -> bool:
    """Whether this error only says that a peer has died."""
    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING)


def complete(request: MPI.Request) -> bool:
    """Whether `request`, asked until it is, is done. One that failed with its peer, and so has
    become null, never is: the loss is reported by the receive that is posted for the peer."""
    if request == MPI.REQUEST_NULL:
        return False
    try:
        return request.Test()
    except MPI.Exception as error:
        if not failed(error):
            raise
        return False


class Wire:
    """What one rank sends to and receives from all others.

    Args:
        comm: used by nothing else for point-to-point messages.
        dim: the most float32 values in a vector; 0 when vectors are `Weightless`.
        vector_peers: ranks that send vectors to this one, and that it sends vectors to.
    """

    is_cut = False  # see CuttableWire

    def __init__(self, comm: MPI.Comm, dim: int, vector_peers: Collection[int]):
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._weightless = Weightless() if dim == 0 else None
        self._last_iteration = comm.Get_attr(MPI.TAG_UB) >> _ITERATION
        body = 8 * (self.size + 8)  # a body may name every rank
        self._room = [body + (4 * dim if peer in vector_peers else 0) for peer in range(self.size)]
        self.sent = 0  # messages so far, marks aside
        self.to_itself: deque[Message] = deque()
        self._sends: deque[MPI.Request] = deque()
        self._pool: list[np.ndarray] = []  # buffers whose vectors may still be in use
        self._status = MPI.Status()
        self._peers = [peer for peer in range(self.size) if peer != self.rank]
        self.lost: set[int] = set()
        self._buffers = [np.empty(self._room[peer], np.uint8) for peer in self._peers]
        self._requests = [self._posted(n) for n in range(len(self._peers))]
        # Posted again at the next poll (nothing comes in before): a vector that has been dropped
        # by then leaves its buffer, which is still in the cache.
        self._emptied: int | None = None  # the peer whose receive was the last to complete

    def send(self, dest: int, message: Message) -> None:
        """Start sending; the vector must stay as it is from now on, and is held until it has left.

        Raises ValueError when the message does not fit into what `dest` has room for.
        """
        self.sent += message.kind != MARK
        if dest == self.rank:
            self.to_itself.append(message)
        else:
            self._start(dest, *self._packed(message))

    def broadcast(self, message: Message) -> None:
        """`send` to every other rank."""
        if message.kind != MARK:
            self.sent += len(self._peers)
        tag, payload = self._packed(message)
        for dest in self._peers:
            self._start(dest, tag, payload)

    def poll(self) -> Message | None:
        """The next message that has come in, if any; PEER_LOST in the name of a dead peer."""
        if self.to_itself:
            return self.to_itself.popleft()
        try:
            if self._emptied is not None:
                n, self._emptied = self._emptied, None
                self._requests[n] = self._posted(n)
            n, here = MPI.Request.Testany(self._requests, self._status)
        except MPI.Exception as error:
            if not failed(error):
                raise
            self._lose()
            return self.to_itself.popleft() if self.to_itself else None
        if not here or n < 0:  # negative: there are no peers (left)
            return None
        self._emptied = n
        return self._unpacked(n)

    def all_sent(self) -> bool:
        """Whether every message has left; lets go of those that have."""
        sends = self._sends
        while sends:
            try:
                if not sends[0].Test():
                    return False
            except MPI.Exception as error:
                if not failed(error):
                    raise
            sends.popleft()
        return True

    def close(self) -> None:
        """Cancel the posted receives; nothing may be under way any more."""
        for request in self._requests:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
                try:
                    request.Wait()
                except MPI.Exception as error:
                    if not failed(error):
                        raise

    # Sending

    def _packed(self, message: Message) -> tuple[int, list]:
        """Tag and buffer specification."""
        kind, iteration, _, body, vector = message
        if not 0 <= iteration <= self._last_iteration:
            raise ValueError(f"iteration {iteration}: the tags go to {self._last_iteration}")
        tag = iteration << _ITERATION | kind
        payload: np.ndarray | bytes = b""
        if vector is not None:
            tag |= _VECTOR
            if self._weightless is None:
                payload = np.ascontiguousarray(vector, np.float32)
        if body:
            tag |= _BODY
            integers = array("q", body if vector is None else (*body, len(body))).tobytes()
            payload = b"".join((payload, integers)) if vector is not None else integers
        nbytes = len(payload) if isinstance(payload, bytes) else payload.nbytes
        return tag, [payload, nbytes, _BYTE]

    def _start(self, dest: int, tag: int, payload: list) -> None:
        if dest in self.lost:
            return
        self.all_sent()  # arrays that are let go of soon are still in the cache when used again
        if payload[1] > self._room[dest]:
            raise ValueError(
                f"rank {self.rank} sends {payload[1]} bytes to rank {dest}, which has room for "
                f"{self._room[dest]}: vectors go to neighbours and servers only, up to dim values"
            )
        try:
            request = self._comm.Isend(payload, dest, tag)
        except MPI.Exception as error:
            if not failed(error):
                raise
            return
        self._sends.append(request)

    # Receiving

    def _posted(self, n: int) -> MPI.Request:
        """A receive from peer number `n`, into a buffer that nobody else holds."""
        if sys.getrefcount(self._buffers[n]) != _NOBODY:
            self._pool.append(self._buffers[n])
            self._buffers[n] = self._unused(self._room[self._peers[n]])
        return self._comm.Irecv([self._buffers[n], _BYTE], self._peers[n], MPI.ANY_TAG)

    def _unused(self, nbytes: int) -> np.ndarray:
        """A buffer from the pool whose vector has been dropped, or a new one.

        A message's vector is a view of its buffer, and every view of a view keeps the buffer
        itself alive, so the reference count tells whether any is left.
        """
        pool = self._pool
        for n in range(len(pool)):
            if sys.getrefcount(pool[n]) == _NOBODY and pool[n].nbytes == nbytes:
                return pool.pop(n)
        return np.empty(nbytes, np.uint8)

    def _unpacked(self, n: int) -> Message:
        tag, end = self._status.tag, self._status.count
        buffer, body, vector = self._buffers[n], (), None
        if tag & _BODY:
            length = end // 8
            if tag & _VECTOR:
                end -= 8
                (length,) = struct.unpack_from("=q", buffer, end)
            end -= 8 * length
            body = struct.unpack_from(f"={length}q", buffer, end)
        if tag & _VECTOR:
            vector = self._weightless or buffer[:end].view(np.float32)
        kind = _KINDS[tag & _KIND_MASK]
        return Message(kind, tag >> _ITERATION, self._peers[n], body, vector)

    def _lose(self) -> None:
        """PEER_LOST, to this rank itself, of every peer whose receive has failed: MPI reports one,
        and makes all of them null."""
        for peer, request in zip(self._peers, self._requests, strict=True):
            if request == MPI.REQUEST_NULL and peer not in self.lost:
                self.lost.add(peer)
                self.to_itself.append(Message(Kind.PEER_LOST, 0, peer, (1,)))


class CuttableWire(Wire):
    """A wire that a fault can cut for a while: nothing comes in, and what is sent meanwhile leaves
    afterwards, in order. What this rank sends to itself is on no wire."""

    def __init__(self, comm: MPI.Comm, dim: int, vector_peers: Collection[int]):
        super().__init__(comm, dim, vector_peers)
        self._held: deque[tuple[int, int, list]] = deque()

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        self.is_cut = False
        while self._held:
            super()._start(*self._held.popleft())

    def poll(self) -> Message | None:
        if self.is_cut:
            return self.to_itself.popleft() if self.to_itself else None
        return super().poll()

    def all_sent(self) -> bool:
        return not self.is_cut and super().all_sent()

    def _start(self, dest: int, tag: int, payload: list) -> None:
        if self.is_cut:
            self._held.append((dest, tag, payload))
        else:
            super()._start(dest, tag, payload)
