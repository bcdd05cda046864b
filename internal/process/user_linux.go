package process

// passwdName looks the user up in /etc/passwd, which takes a few microseconds; package os/user takes many.
func passwdName(uid int) string {
	buf := make([]byte, 16<<10)
	data, err := readFile("/etc/passwd", buf)
	if err != nil || len(data) == len(buf) {
		return ""
	}
	return parsePasswd(data, uid)
}
