"""The directory of a log, and what stands in for it in memory: the only door to the file system."""

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.disk.memory import MemoryDisk
from remuda.log.disk.port import AppendFile, Disk

__all__ = ["AppendFile", "DirectoryDisk", "Disk", "MemoryDisk"]
