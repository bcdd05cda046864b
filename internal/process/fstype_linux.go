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
	if name := remoteFS(magic); name != "" {
		return name, false
	}
	if name := hostFS(magic); name != "" {
		return name, true
	}
	return "0x" + strconv.FormatUint(uint64(magic), 16), true
}

// remoteFS names file systems on which other hosts, or a program in between, may have a say. Numbers are those of
// linux/magic.h, and of statfs(2) where that has none.
func remoteFS(magic uint32) string {
	switch magic {
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.CIFS_SUPER_MAGIC:
		return "cifs"
	case unix.SMB2_SUPER_MAGIC:
		return "smb2"
	case unix.SMB_SUPER_MAGIC:
		return "smb"
	case unix.V9FS_MAGIC:
		return "9p"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case unix.CEPH_SUPER_MAGIC:
		return "ceph"
	case 0x0bd00bd0:
		return "lustre"
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "afs"
	case unix.CODA_SUPER_MAGIC:
		return "coda"
	case unix.NCP_SUPER_MAGIC:
		return "ncp"
	case unix.OCFS2_SUPER_MAGIC:
		return "ocfs2"
	case 0x01161970:
		return "gfs2"
	case 0x47504653:
		return "gpfs"
	case 0x19830326:
		return "beegfs"
	case 0xaad7aaea:
		return "panfs"
	case 0x20030528:
		return "orangefs"
	case 0xbacbacbc:
		return "vmhgfs"
	case 0x786f4256:
		return "vboxsf"
	}
	return ""
}

func hostFS(magic uint32) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.RAMFS_MAGIC:
		return "ramfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.MSDOS_SUPER_MAGIC:
		return "vfat"
	case unix.EXFAT_SUPER_MAGIC:
		return "exfat"
	case unix.ECRYPTFS_SUPER_MAGIC:
		return "ecryptfs"
	case unix.REISERFS_SUPER_MAGIC:
		return "reiserfs"
	case unix.PROC_SUPER_MAGIC:
		return "proc"
	case 0x2fc12fc1:
		return "zfs"
	case 0xca451a4e:
		return "bcachefs"
	case 0x5346544e, 0x7366746e:
		return "ntfs"
	case 0x3153464a:
		return "jfs"
	}
	return ""
}
