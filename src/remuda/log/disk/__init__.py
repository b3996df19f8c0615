"""The directory of a log, and what stands in for it in memory: the only door to the file system."""

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.disk.disk_port import AppendFile, Disk
from remuda.log.disk.memory_disk import MemoryDisk

__all__ = ["AppendFile", "DirectoryDisk", "Disk", "MemoryDisk"]
