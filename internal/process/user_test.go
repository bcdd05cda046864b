package process

import (
	"os/user"
	"testing"
)

func TestUserNameIsTheOneOfTheAccount(t *testing.T) {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if got := UserName(); got != u.Username {
		t.Errorf("UserName() = %q, want %q", got, u.Username)
	}
}

func TestPasswdLinesThatAreNoUsersAreSkipped(t *testing.T) {
	file := []byte("#x:x:7:7::/:\nshort:7\n:x:7:7::/:\nseven:x:7:7:Seven:/:/bin/sh\nagain:x:7:7::/:\n")
	if got := parsePasswd(file, 7); got != "seven" {
		t.Errorf("user 7 is %q, want seven", got)
	}
	if got := parsePasswd(file, 8); got != "" {
		t.Errorf("user 8 is %q, want none", got)
	}
}
