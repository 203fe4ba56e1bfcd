"""Stand-ins for frameworks, with the parts of them that a trim touches: allocators that keep what is freed.

They take their memory from the driver by real calls, so that what they keep is charged and what they free is free.
"""

from __future__ import annotations

from pathlib import Path

CACHING = '''
import threading
from cuda_client import *

class Caching:
    """An allocator that keeps what is freed, as frameworks have them."""
    def __init__(self, cuda):
        self.cuda, self.kept, self.lock, self.emptied = cuda, [], threading.Lock(), []

    def take(self, size):
        with self.lock:
            for one in self.kept:
                if one[0] == size:
                    self.kept.remove(one)
                    return one[1]
        return self.cuda.must_alloc(size)

    def give(self, size, pointer):
        with self.lock:
            self.kept.append((size, pointer))

    def empty(self):
        with self.lock:
            self.emptied[100:] = [threading.get_ident()]
            while self.kept:
                check(self.cuda.free(self.kept.pop()[1]))
'''

TORCH = """
import sys
from caching import *

class Cuda_:
    "torch.cuda"
    def __init__(self):
        self.cuda = None

    def is_initialized(self):
        return self.cuda is not None

    def init(self):
        self.cuda = Cuda().start()
        self.allocator = Caching(self.cuda)

    def empty_cache(self):
        self.allocator.empty()

class Tensor:
    def __init__(self, size):
        self.size, self.pointer = size, cuda.allocator.take(size)

    def __del__(self):
        cuda.allocator.give(self.size, self.pointer)

cuda = Cuda_()
"""

CUPY = """
from caching import *

class Pool(Caching):
    def free_all_blocks(self):
        self.empty()

pool = Pool(Cuda().start())

def get_default_memory_pool():
    return pool
"""


def install(directory: Path) -> str:
    """Write them where a program can import them; the directory."""
    directory.mkdir(exist_ok=True)
    for name, text in (("caching", CACHING), ("torch", TORCH), ("cupy", CUPY)):
        (directory / f"{name}.py").write_text(text)
    return str(directory)
