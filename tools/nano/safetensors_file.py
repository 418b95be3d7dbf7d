"""Reading and writing of safetensors files: 8 bytes length, a JSON header, the tensors' bytes."""
import json
import struct

import torch

DTYPE_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def byte_size(tensor):
    return tensor.numel() * tensor.element_size()


def save(path, tensors, metadata=None):
    """Writes name -> tensor in the order of the names and returns the file's size in bytes. The dtype of a tensor is the one stored."""
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        end = offset + byte_size(tensor)
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        blobs.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)
    return 8 + len(text) + offset


def load(path):
    """-> name -> tensor in its stored dtype"""
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = torch.frombuffer(raw[start + begin:start + end], dtype=torch.uint8) if end > begin else torch.empty(0, dtype=torch.uint8)
        tensors[name] = data.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
