package process

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// LocalFS returns the type of the file system that holds path, and whether it is of this host alone, so that locks
// on its files are the kernel's own. A type that is not known counts as local, and so does a path that cannot be asked
// about, whose type is "".
func LocalFS(path string) (fstype string, local bool) {
	var s unix.Statfs_t
	if _, err := retry(func() (int, error) { return 0, unix.Statfs(path, &s) }); err != nil {
		return "", true
	}
	// The field's width and sign differ between architectures; magic numbers have 32 bits.
	magic := uint32(s.Type)
	if name := remoteFS()[magic]; name != "" {
		return name, false
	}
	if name := hostFS()[magic]; name != "" {
		return name, true
	}
	return "0x" + strconv.FormatUint(uint64(magic), 16), true
}

// remoteFS names file systems on which other hosts, or a program in between, may have a say. Numbers are those of
// linux/magic.h, and of statfs(2) where that has none.
func remoteFS() map[uint32]string {
	return map[uint32]string{
		unix.NFS_SUPER_MAGIC: "nfs", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "smb2",
		unix.SMB_SUPER_MAGIC: "smb", unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "fuse",
		unix.CEPH_SUPER_MAGIC: "ceph", 0x0bd00bd0: "lustre", unix.AFS_SUPER_MAGIC: "afs",
		unix.AFS_FS_MAGIC: "afs", unix.CODA_SUPER_MAGIC: "coda", unix.NCP_SUPER_MAGIC: "ncp",
		unix.OCFS2_SUPER_MAGIC: "ocfs2", 0x01161970: "gfs2", 0x47504653: "gpfs", 0x19830326: "beegfs",
		0xaad7aaea: "panfs", 0x20030528: "orangefs", 0xbacbacbc: "vmhgfs", 0x786f4256: "vboxsf",
	}
}

func hostFS() map[uint32]string {
	return map[uint32]string{
		unix.EXT4_SUPER_MAGIC: "ext", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
		unix.F2FS_SUPER_MAGIC: "f2fs", unix.MSDOS_SUPER_MAGIC: "vfat", unix.EXFAT_SUPER_MAGIC: "exfat",
		unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs", unix.REISERFS_SUPER_MAGIC: "reiserfs",
		unix.PROC_SUPER_MAGIC: "proc", 0x2fc12fc1: "zfs", 0xca451a4e: "bcachefs", 0x5346544e: "ntfs",
		0x7366746e: "ntfs", 0x3153464a: "jfs",
	}
}
