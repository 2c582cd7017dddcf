"""Reads the token files of a prepared data folder (ARTOKENS, version 1) with nothing but Python.

All little-endian: a header of 160 bytes (magic, u32 version, u32 header length, u32 vocabulary,
u32 longest, u64 sequences, u64 ids, u64 groups, SHA-256 of the body, zeros, SHA-256 of the header before
it), the ids (2 bytes each where the vocabulary has at most 65,536 entries, else 4) padded to 8, then
sequences + 1 offsets of 8 bytes counted in ids. What follows (groups, flags) is not read here.
"""

import array
import hashlib
import pathlib
import struct
import sys

HEADER = 160


def read(path):
    """Returns (vocabulary, list of sequences of ids)."""
    data = pathlib.Path(path).read_bytes()
    fail = lambda what: sys.exit(f"{path}: {what}; make the folder again with `autoreg data prepare`")
    if len(data) < HEADER or data[:8] != b"ARTOKENS":
        fail("is not a token file")
    version, length, vocabulary, _longest, sequences, tokens, _groups = struct.unpack_from("<4I3Q", data, 8)
    if (version, length) != (1, HEADER):
        fail(f"has version {version} with a header of {length}, expected 1 with {HEADER}")
    if hashlib.sha256(data[:HEADER - 32]).digest() != data[HEADER - 32:HEADER]:
        fail("has a damaged header")
    if hashlib.sha256(data[HEADER:]).digest() != data[48:80]:
        fail("has a damaged body")
    width = 2 if vocabulary <= 65_536 else 4
    ids = array.array("H" if width == 2 else "I", data[HEADER:HEADER + tokens * width])
    start = -(-(HEADER + tokens * width) // 8) * 8
    offsets = array.array("Q", data[start:start + 8 * (sequences + 1)])
    if sys.byteorder == "big":
        ids.byteswap()
        offsets.byteswap()
    return vocabulary, [ids[offsets[i]:offsets[i + 1]].tolist() for i in range(sequences)]
