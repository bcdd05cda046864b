package process

import (
	"bytes"
	"os"
	"os/user"
	"strconv"
)

// UserName returns the name of the user that this process runs as, or "uid-N" if the user has none.
func UserName() string { return NameOf(os.Getuid()) }

// NameOf returns the name of a user, or "uid-N" if there is none.
func NameOf(uid int) string {
	if file, err := os.ReadFile("/etc/passwd"); err == nil { // package os/user takes ten times as long
		if name := parsePasswd(file, uid); name != "" {
			return name
		}
	}
	if u, err := user.Current(); err == nil && u.Username != "" && uid == os.Getuid() {
		return u.Username
	}
	return "uid-" + strconv.Itoa(uid)
}

// parsePasswd returns the name of the user in the contents of a passwd(5) file.
func parsePasswd(file []byte, uid int) string {
	want := []byte(strconv.Itoa(uid))
	for line := range bytes.Lines(file) {
		fields := bytes.SplitN(line, []byte{':'}, 4)
		if len(fields) == 4 && bytes.Equal(fields[2], want) && len(fields[0]) > 0 && fields[0][0] != '#' {
			return string(fields[0])
		}
	}
	return ""
}
