// Package helm renders and validates the chart with Helm's own library.
package helm

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// render returns the documents of the chart by kind, each decoded strictly into the type that Kubernetes has for it.
func render(t *testing.T, values string) (documents map[string]any, err error) {
	t.Helper()
	chart, err := loader.Load("loktd")
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "locks", Namespace: "ops"}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, err
	}
	documents = map[string]any{}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, document := range strings.Split(text, "\n---\n") {
			var head struct{ Kind string }
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			typed, known := map[string]any{
				"StatefulSet": &apps.StatefulSet{}, "Deployment": &apps.Deployment{}, "Service": &core.Service{}, "Pod": &core.Pod{},
				"NetworkPolicy": &networking.NetworkPolicy{}, "PodDisruptionBudget": &policy.PodDisruptionBudget{},
				"ServiceMonitor": &map[string]any{}, // of the Prometheus operator
			}[head.Kind]
			if !known {
				t.Fatalf("%s: unknown kind %q\n%s", name, head.Kind, document)
			}
			if err := yaml.UnmarshalStrict([]byte(document), typed); err != nil {
				t.Fatalf("%s: %s: %v\n%s", name, head.Kind, err, document)
			}
			documents[head.Kind] = typed
		}
	}
	return documents, nil
}

const secured = "tls: {secret: locks-tls}\ntokens: {secret: locks-tokens}\n"

func TestSQLiteIsOnePodWithAVolume(t *testing.T) {
	d, err := render(t, secured+"replicas: 3\nsettings: {LOKTD_CAPACITY: \"200\"}\n")
	if err != nil {
		t.Fatal(err)
	}
	set, ok := d["StatefulSet"].(*apps.StatefulSet)
	if !ok || d["Deployment"] != nil || *set.Spec.Replicas != 1 || len(set.Spec.VolumeClaimTemplates) != 1 {
		t.Fatalf("%+v", d)
	}
	env := map[string]string{}
	for _, e := range set.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
	}
	if env["LOKTD_STORE"] != "sqlite:/var/lib/loktd/loktd.db" || env["LOKTD_TLS_CERT"] == "" || env["LOKTD_TOKENS"] == "" || env["LOKTD_CAPACITY"] != "200" {
		t.Errorf("%v", env)
	}
	if p := set.Spec.Template.Spec.Containers[0].ReadinessProbe; p.HTTPGet.Scheme != core.URISchemeHTTPS {
		t.Errorf("probe: %+v", p)
	}
	if n, ok := d["NetworkPolicy"].(*networking.NetworkPolicy); !ok || len(n.Spec.Ingress[0].From) != 1 {
		t.Errorf("network policy: %+v", d["NetworkPolicy"])
	}
	if p, ok := d["Pod"].(*core.Pod); !ok || p.Annotations["helm.sh/hook"] != "test" {
		t.Errorf("test: %+v", d["Pod"])
	}
}

func TestOtherStoresHaveReplicasAndNoVolume(t *testing.T) {
	for _, kind := range []string{"postgresql", "etcd"} {
		d, err := render(t, "insecure: true\nstore: {kind: "+kind+", secret: locks-store}\nserviceMonitor: {enabled: true, tokenSecret: read}\n")
		if err != nil {
			t.Fatal(err)
		}
		deployment, ok := d["Deployment"].(*apps.Deployment)
		if !ok || d["StatefulSet"] != nil || *deployment.Spec.Replicas != 2 || d["PodDisruptionBudget"] == nil || d["ServiceMonitor"] == nil {
			t.Fatalf("%s: %+v", kind, d)
		}
		jobs := ""
		for _, e := range deployment.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "LOKTD_STORE" && e.ValueFrom.SecretKeyRef.Name != "locks-store" {
				t.Errorf("store: %+v", e)
			}
			if e.Name == "LOKTD_JOBS_STORE" {
				jobs += e.Value
			}
		}
		if want := map[string]string{"etcd": "none"}[kind]; jobs != want { // with etcd and nothing, loktd does not start
			t.Errorf("%s: jobs are stored in %q", kind, jobs)
		}
	}
	d, err := render(t, "insecure: true\nstore: {kind: etcd, secret: s}\nsettings: {LOKTD_JOBS_STORE: \"memory:\"}\n")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(d["Deployment"].(*apps.Deployment).Spec.Template.Spec.Containers[0].Env); strings.Contains(text, "none") || !strings.Contains(text, "memory:") {
		t.Errorf("another store of jobs: %s", text)
	}
}

// Without tokens the daemon answers under names that it knows only.
func TestTheServicesNamesAreKnownToTheDaemon(t *testing.T) {
	for settings, want := range map[string]string{
		"{}":                           "locks-loktd locks-loktd.ops locks-loktd.ops.svc locks-loktd.ops.svc.cluster.local",
		"{LOKTD_HOSTS: locks.example}": "locks-loktd locks-loktd.ops locks-loktd.ops.svc locks-loktd.ops.svc.cluster.local locks.example",
	} {
		d, err := render(t, "insecure: true\nsettings: "+settings+"\n")
		if err != nil {
			t.Fatal(err)
		}
		var hosts []string
		for _, e := range d["StatefulSet"].(*apps.StatefulSet).Spec.Template.Spec.Containers[0].Env {
			if e.Name == "LOKTD_HOSTS" {
				hosts = append(hosts, e.Value)
			}
		}
		if len(hosts) != 1 || hosts[0] != want {
			t.Errorf("with %s the names are %q, not %q", settings, hosts, want)
		}
	}
}

// What Prometheus calls a target is the label of its service that jobLabel names.
func TestAlertsAreAboutWhatIsScraped(t *testing.T) {
	d, err := render(t, "insecure: true\nserviceMonitor: {enabled: true}\n")
	if err != nil {
		t.Fatal(err)
	}
	monitor, ok := (*d["ServiceMonitor"].(*map[string]any))["spec"].(map[string]any)
	label, _ := monitor["jobLabel"].(string)
	job := d["Service"].(*core.Service).Labels[label]
	alerts, err := os.ReadFile("../prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	if !ok || job == "" || !strings.Contains(string(alerts), fmt.Sprintf("up{job=%q}", job)) {
		t.Errorf("the job is called %q: %v", job, monitor)
	}
}

func TestValuesThatMakeNoSenseAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                                      "tls", // neither secured nor said to be insecure
		secured + "replica: 2\n":                  "replica",
		secured + "replicas: 0\n":                 "replicas",
		secured + "store: {kind: mysql}\n":        "store",
		secured + "store: {kind: postgresql}\n":   "secret",
		secured + "settings: {capacity: \"2\"}\n": "capacity",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
}
