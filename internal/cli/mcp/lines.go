package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// requests are the lines of standard input that are messages of the protocol. The others are answered here: the server would end.
type requests struct {
	in   *bufio.Reader
	out  io.Writer
	rest []byte // of a line
}

func (r *requests) Read(p []byte) (n int, err error) {
	for len(r.rest) == 0 {
		line, tooLong, err := r.line()
		if r.rest = bytes.TrimSpace(line); err != nil && len(r.rest) == 0 {
			return 0, io.EOF
		}
		id, code, bad := check(r.rest)
		switch {
		case tooLong:
			code, bad = jsonrpc.CodeInvalidRequest, fmt.Errorf("the message is longer than %d bytes", mcp.DefaultMaxLineLength)
		case len(r.rest) == 0:
			continue
		}
		if bad == nil {
			r.rest = append(r.rest, '\n')
			continue
		}
		r.rest = nil
		why, _ := json.Marshal(bad.Error()) // a string always can be
		if _, err := fmt.Fprintf(r.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`+"\n", id, code, why); err != nil {
			return 0, err
		}
	}
	n = copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// line returns the next line, of one that is too long the beginning.
func (r *requests) line() (line []byte, tooLong bool, err error) {
	for {
		part, err := r.in.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > mcp.DefaultMaxLineLength; !tooLong {
			line = append(line, part...)
		}
		if err != bufio.ErrBufferFull { //nolint:errorlint // it is returned as it is
			return line, tooLong, err
		}
	}
}

// check finds out whether a line is a message, and returns the code of what is wrong with it. Lists of them are none since 2025-06-18.
func check(line []byte) (id string, code int, err error) {
	if !json.Valid(line) {
		return "null", jsonrpc.CodeParseError, fmt.Errorf("a message is one line of JSON")
	}
	m, err := jsonrpc.DecodeMessage(line)
	var of struct{ ID json.RawMessage }
	if err == nil && json.Unmarshal(line, &of) == nil && len(of.ID) > 0 && of.ID[0] != '"' && of.ID[0] != 'n' {
		if n, bad := strconv.ParseInt(string(of.ID), 10, 64); bad != nil || max(n, -n) > 1<<53 { // the answer would have another one
			return string(of.ID), jsonrpc.CodeInvalidRequest, fmt.Errorf("its id is a number that cannot be kept: take an integer up to 2^53, or a string")
		}
	}
	if r, is := m.(*jsonrpc.Response); is && err == nil && r.Result == nil && r.Error == nil {
		err = fmt.Errorf("it has neither a method nor a result")
	}
	return "null", jsonrpc.CodeInvalidRequest, err
}

// output is standard output, which ends with the process. A line is written at once.
type output struct {
	mu sync.Mutex
	io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Writer.Write(p)
}

func (*output) Close() error { return nil }
