"""Reads and writes the protobuf wire format, as far as ONNX models need it.

A message is a list of (field number, value): int for a varint, bytes for a nested message or text.
"""


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields):
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            value = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(value)) + value)
    return b"".join(parts)


def decode(data):
    at, fields = 0, []

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            fields.append((key >> 3, number()))
            continue
        length = number() if kind == 2 else {1: 8, 5: 4}[kind]
        fields.append((key >> 3, bytes(data[at : at + length])))
        at += length
    return fields


def entry(key, value):
    return encode([(1, key), (2, str(value))])


def external(name, dtype, dims, location, offset, length):
    """A TensorProto whose bytes lie in a file beside the model."""
    places = [("location", location), ("offset", offset), ("length", length)]
    return encode(
        [(1, d) for d in dims] + [(2, dtype), (8, name), *((13, entry(*p)) for p in places), (14, 1)]
    )


def node(op, inputs, outputs, attributes=()):
    """A NodeProto; attributes are (name, int | [int] | bytes of f32)."""
    fields = [(1, i) for i in inputs] + [(2, o) for o in outputs] + [(3, outputs[0]), (4, op)]
    for name, value in attributes:
        if isinstance(value, int):
            body = [(1, name), (3, value), (20, 2)]
        else:
            body = [(1, name), *((8, v) for v in value), (20, 7)]
        fields.append((5, encode(body)))
    return encode(fields)


def value_info(name, dtype, dims):
    shape = encode([(1, encode([(1, d) if isinstance(d, int) else (2, d)])) for d in dims])
    return encode([(1, name), (2, encode([(1, encode([(1, dtype), (2, shape)]))]))])
