package process

import "golang.org/x/sys/windows"

// LocalFS returns the kind of volume that holds path, "remote" or "local", and whether it is of this host alone. A path
// that cannot be asked about has kind "" and counts as local.
func LocalFS(path string) (fstype string, local bool) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", true
	}
	volume := make([]uint16, len(path)+windows.MAX_PATH)
	if err := windows.GetVolumePathName(p, &volume[0], uint32(len(volume))); err != nil {
		return "", true
	}
	if windows.GetDriveType(&volume[0]) == windows.DRIVE_REMOTE {
		return "remote", false
	}
	return "local", true
}
