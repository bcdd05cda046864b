package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lokt-dev/lokt"
)

// Promises S-117, S-330.
func TestTLSAndAUserWithRightsForThePrefixOnlyAreEnough(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false, func(cfg *embed.Config) {
		cfg.ClientAutoTLS, cfg.BcryptCost = true, 4
		cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: cfg.ListenClientUrls[0].Host}}
		cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	})
	ca := filepath.Join(c.members[0].config.Dir, "fixtures", "client", "cert.pem")
	at := c.members[0].front
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	trust := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trust.RootCAs.AppendCertsFromPEM(pem)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + at}, TLS: trust, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	ctx := t.Context()
	_, err1 := admin.UserAdd(ctx, "root", "root's")
	_, err2 := admin.UserGrantRole(ctx, "root", "root")
	_, err3 := admin.RoleAdd(ctx, "lokt")
	_, err4 := admin.RoleGrantPermission(ctx, "lokt", "/locks/", "/locks0", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err5 := admin.UserAdd(ctx, "lokt", "p@ss:word")
	_, err6 := admin.UserGrantRole(ctx, "lokt", "lokt")
	_, err7 := admin.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		t.Fatal(err)
	}

	secured := fmt.Sprintf("etcds://lokt:p%%40ss%%3Aword@%s/locks", at)
	s := c.open(t, secured+"?ca="+url.QueryEscape(ca), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	h := acquire(t, m, claimOf("x", "a", time.Hour))
	if _, err := m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err != nil {
		t.Error(err)
	}
	next := claimOf("x", "b", time.Hour)
	next.Wait = -1
	granted := make(chan error, 1)
	go func() {
		_, err := m.Acquire(ctx, next)
		granted <- err
	}()
	eventually(t, "b waits", func() bool {
		snap, err := m.Get(ctx, "x")
		return err == nil && len(snap.Lock.Queue) == 1
	})
	release(t, m, h)
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if page, err := s.ReadEvents(ctx, lokt.EventQuery{}); err != nil || len(page.Events) == 0 {
		t.Errorf("events: %+v, %v", page, err)
	}

	for what, wrong := range map[string]string{
		"a wrong password":     strings.Replace(secured, "word@", "secret@", 1) + "?ca=" + url.QueryEscape(ca),
		"no user":              fmt.Sprintf("etcds://%s/locks?ca=%s", at, url.QueryEscape(ca)),
		"another prefix":       strings.Replace(secured, "/locks", "/other", 1) + "?ca=" + url.QueryEscape(ca),
		"an unknown authority": secured,
		"no TLS":               strings.Replace(secured, "etcds:", "etcd:", 1),
	} {
		s, err := Open(ctx, wrong, Options{Timeout: 2 * time.Second})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", what)
		} else if !errors.Is(err, lokt.ErrUnavailable) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "word@") {
			t.Errorf("%s: %v", what, err)
		}
	}
	made, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{"127.0.0.1:0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{made.CertFile: ca, made.KeyFile: filepath.Join(filepath.Dir(ca), "key.pem")} {
		text, err := os.ReadFile(from)
		if err := errors.Join(err, os.WriteFile(to, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	c.members[0].gate.Cut()
	eventually(t, "new connections trust the certificate that is there now", func() bool {
		snap, err := m.Get(ctx, "x")
		return err == nil && len(snap.Lock.Holders) == 1
	})
	if _, err := Open(ctx, "http://"+at, Options{}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("a URL of another kind: %v", err)
	}
}

// forgetful is an etcd 3.4 with nothing in it that knows one token, and refuses whatever comes with another.
type forgetful struct {
	pb.UnimplementedKVServer
	pb.UnimplementedAuthServer
	token atomic.Int64
}

func (f *forgetful) judge(ctx context.Context, anonymous bool) error {
	md, _ := metadata.FromIncomingContext(ctx)
	shown := strings.Join(md.Get(rpctypes.TokenFieldNameGRPC), "")
	if shown == "" && anonymous || shown == strconv.FormatInt(f.token.Load(), 10) {
		return nil
	}
	return rpctypes.ErrGRPCInvalidAuthToken
}

func (f *forgetful) Authenticate(ctx context.Context, _ *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	return &pb.AuthenticateResponse{Header: &pb.ResponseHeader{}, Token: strconv.FormatInt(f.token.Load(), 10)}, f.judge(ctx, true)
}

func (f *forgetful) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{}}, f.judge(ctx, false)
}

func (f *forgetful) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	one := &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}}
	return &pb.TxnResponse{Header: &pb.ResponseHeader{}, Responses: slices.Repeat([]*pb.ResponseOp{one}, len(r.GetSuccess()))}, f.judge(ctx, false)
}

// Promise S-117.
func TestAnEtcdThatForgetsWhoHadLoggedInIsLoggedInToAgain(t *testing.T) {
	t.Parallel()
	etcd, server := &forgetful{}, grpc.NewServer()
	pb.RegisterKVServer(server, etcd)
	pb.RegisterAuthServer(server, etcd)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	s, err := Open(t.Context(), fmt.Sprintf("etcd://lokt:word@%s/locks", l.Addr()), Options{Timeout: longTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for range 3 {
		if _, err := s.View(t.Context(), "x"); err != nil {
			t.Errorf("with token %d: %v", etcd.token.Load(), err)
		}
		etcd.token.Add(1) // it was started again
	}
}
